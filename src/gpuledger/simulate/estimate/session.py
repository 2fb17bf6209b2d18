"""A session on a virtual card: the steps, modules and phases are met as in a recording, the program ends after them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.simulate.estimate.recorder import DEVICE_IDX, VirtualRecorder
from gpuledger.simulate.gpu.device import VirtualDevice
from gpuledger.simulate.gpu.workspaces import CUBLASLT_BYTES, cublas_bytes


class StepsDone(BaseException):
    """Ends the program after its steps, past every ``except Exception`` of its own."""


class VirtualSession(Session):
    """Records what happens on a virtual card.

    Args:
        device: The card.
        steps: After how many the program is ended.
        run_directory: Where the run is written.
    """

    def __init__(self, device: VirtualDevice, steps: int, run_directory: Path, *, ends_program: bool = True) -> None:
        settings = RecordSettings(run_directory, 1, steps, stacks=False)
        directory: Callable[[], Path] = lambda: run_directory / "rank-0"  # noqa: E731
        super().__init__(settings, rank_directory=directory)
        self.device = device
        self._ends_program = ends_program
        device.module_now = self._module_now
        self._begins_late = False  # what is alive now is not on the card

    def _module_now(self) -> str:
        """Return the path of the module that is running; "" outside of any."""
        pieces = self.device.token.partition("~")[0].split(".")
        module_id = int(pieces[1], 36) - 1 if len(pieces) > 1 else -1
        return self.roster.path_of(module_id) if module_id >= 0 else ""

    def _begin(self) -> None:
        card = self.device.card
        recorder = VirtualRecorder(self.device, self.tags)
        self.journal.fact(
            devices=[{"device_idx": DEVICE_IDX, "name": card.name, "total_bytes": card.total_bytes}],
            workspace_bytes=sorted({cublas_bytes(self.device), CUBLASLT_BYTES}),
        )
        self._adopt(recorder, None)
        assert self.window is not None
        self.window.sightings.place_of = recorder.place_of

    def finish(self, reason: str = "exit") -> None:
        """Close the journal; which libraries were used is known by now."""
        card = self.device.card.with_handles(self.device.handles)
        self.journal.fact(
            cublas_handles=self.device.handles,
            libraries={
                "context_bytes": card.context_bytes.value,
                "library_bytes": card.library_bytes.value,
                "source": f"catalogue of cards: {card.context_bytes.source}",
            },
        )
        super().finish(reason)

    def _step_ended(self, kind: str, start_ns: int, end_ns: int) -> None:
        super()._step_ended(kind, start_ns, end_ns)
        if self._ends_program and self.steps.seen >= self.settings.last_step:
            raise StepsDone

    def fail(self, error: BaseException) -> None:
        """An error of ours is the answer here: there is no program to protect."""
        raise error
