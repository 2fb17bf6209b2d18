"""A recording session on a simulated GPU. Steps, modules and phases are detected as usual; then the program ends."""

from __future__ import annotations

from pathlib import Path

from gpuledger.collect.attribution.phases import ModuleContext
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES
from gpuledger.simulate.estimate.recorder import DEVICE_IDX, SimulatedRecorder
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.rest import MOST_LATER_STEPS, RestOfProgram
from gpuledger.simulate.temporaries.products import CUBLASLT_BYTES, cublas_bytes


class SimulatedRecorders:
    """Provides a session with the recorder of a simulated GPU, immediately."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def begin(self, session: Session) -> None:
        """Start recording the GPU."""
        card, context = self._device.card, ModuleContext(session.registry)
        self._device.module_now = lambda: context.current_module_path
        session.journal.fact(
            devices=[{"device_idx": DEVICE_IDX, "name": card.name, "total_bytes": card.total_bytes}],
            workspace_bytes=sorted({cublas_bytes(self._device.sizing.own), CUBLASLT_BYTES}),
        )
        session.adopt(SimulatedRecorder(self._device, session.tags, context), None)

    def begin_after_step(self, session: Session) -> None:
        """Do nothing: the session has its recorder already."""

    def window_ended(self) -> None:
        """Do nothing: nothing of the program is observed."""

    def stop_watching(self) -> None:
        """Do nothing: nothing of the program is observed."""


class SimulatedSession(Session):
    """Records the events of a simulated GPU.

    Args:
        device: The GPU.
        plan: Decides which recorded step is the last.
        run_directory: Directory of the run.
        ends_program: Whether the program is ended after the last of them.
        rank: This process's rank.
        rest: Simulates what follows the last of them, before the program is ended; by default, nothing.
    """

    def __init__(
        self,
        device: SimulatedDevice,
        plan: StepPlan,
        run_directory: Path,
        *,
        ends_program: bool = True,
        rank: int = 0,
        rest: RestOfProgram | None = None,
    ) -> None:
        def end_after(seen: int) -> None:
            if rest is not None and rest.began:
                rest.step_ended(seen, plan.see_later(seen))
            elif plan.is_last(seen) and ends_program:
                if rest is None:
                    raise StepsDone
                rest.begin(seen, plan.growth)

        super().__init__(
            RecordSettings(run_directory, 1, plan.longest + MOST_LATER_STEPS, stacks=False),
            rank_directory=lambda: run_directory / f"rank-{rank}",
            recorders=SimulatedRecorders(device),
            begins_late=False,  # tensors that exist now are not on the GPU
            on_step=end_after,
        )
        self.device = device
        device.largest_request_bytes = LARGEST_REQUEST_BYTES
        plan.counter = self.steps

    def finish(self, reason: str = "exit") -> None:
        """Close the journal. The libraries that the program used are known by now."""
        card = self.device.card.with_handles(self.device.handles)
        self.journal.fact(
            cublas_handles=self.device.handles,
            limit_frac=self.device.limit_frac,
            memory_errors=self.device.memory_errors,
            uncompiled=self.device.uncompiled,
            workspace_addresses=sorted(self.device.kept.values()),
            elsewhere=self.device.elsewhere.fact(),
            libraries={
                "context_bytes": card.context_bytes.value,
                "library_bytes": card.library_bytes.value,
                "source": f"catalogue of GPUs: {card.context_bytes.source}",
            },
        )
        super().finish(reason)

    def fail(self, error: BaseException) -> None:
        """Raise an error of gpuledger: the program's result is not needed, so there is nothing to protect."""
        raise error
