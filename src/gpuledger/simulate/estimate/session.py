"""A session on a virtual GPU: the steps, modules and phases are met as in a recording, the program ends after them."""

from __future__ import annotations

from pathlib import Path

from gpuledger.collect.attribution.phases import ModuleContext
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.simulate.estimate.recorder import DEVICE_IDX, VirtualRecorder
from gpuledger.simulate.gpu.device import VirtualDevice
from gpuledger.simulate.gpu.workspaces import CUBLASLT_BYTES, cublas_bytes


class StepsDone(BaseException):
    """Ends the program after its steps, past every ``except Exception`` of its own."""


class VirtualRecorders:
    """Gives a session the recorder of a virtual GPU, at once."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device

    def begin(self, session: Session) -> None:
        """Have the session record the GPU."""
        card, context = self._device.card, ModuleContext(session.registry)
        self._device.module_now = lambda: context.current_module_path
        session.journal.fact(
            devices=[{"device_idx": DEVICE_IDX, "name": card.name, "total_bytes": card.total_bytes}],
            workspace_bytes=sorted({cublas_bytes(self._device), CUBLASLT_BYTES}),
        )
        session.adopt(VirtualRecorder(self._device, session.tags, context), None)

    def begin_after_step(self, session: Session) -> None:
        """Do nothing: the session has its recorder."""

    def stop_watching(self) -> None:
        """Do nothing: nothing of the program's is watched."""


class VirtualSession(Session):
    """Records what happens on a virtual GPU.

    Args:
        device: The GPU.
        steps: How many to record.
        run_directory: Where the run is written.
        ends_program: Whether the program is ended after the last of them.
    """

    def __init__(self, device: VirtualDevice, steps: int, run_directory: Path, *, ends_program: bool = True) -> None:
        def end_after(seen: int) -> None:
            if ends_program and seen >= steps:
                raise StepsDone

        super().__init__(
            RecordSettings(run_directory, 1, steps, stacks=False),
            rank_directory=lambda: run_directory / "rank-0",
            recorders=VirtualRecorders(device),
            begins_late=False,  # what is alive now is not on the GPU
            on_step=end_after,
        )
        self.device = device

    def finish(self, reason: str = "exit") -> None:
        """Close the journal; which libraries were used is known by now."""
        card = self.device.card.with_handles(self.device.handles)
        self.journal.fact(
            cublas_handles=self.device.handles,
            libraries={
                "context_bytes": card.context_bytes.value,
                "library_bytes": card.library_bytes.value,
                "source": f"catalogue of GPUs: {card.context_bytes.source}",
            },
        )
        super().finish(reason)

    def fail(self, error: BaseException) -> None:
        """An error of ours is the answer here: there is no program to protect."""
        raise error
