"""A recording of what happens inside a ``with`` block on a GPU that is not in the machine."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import UsageError
from gpuledger.model.run_writer import RunWriter, new_manifest
from gpuledger.services.runs import load, post_missing
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.session import SimulatedSession
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

if TYPE_CHECKING:
    from gpuledger.analyze.allocator.pools import Counters
    from gpuledger.model.run import Run
NOTHING_ON_GPU = "Nothing was put on the simulated GPU. Move the model and its inputs to it with .to('cuda')."


class SimulatedRecording:
    """Records a block on a simulated GPU, available as ``cuda:0``. Nothing is computed; values are placeholders.

    Args:
        card: Name of a GPU of the catalogue.
        out: Directory of the new run.

    Raises:
        UsageError: there is no such GPU.
    """

    def __init__(self, card: str, out: Path) -> None:
        self._card = find_card(card)
        self._out = out
        self._stack = ExitStack()
        self._said: dict[str, None] = {}
        self._session: SimulatedSession | None = None
        self._writer: RunWriter | None = None
        self._counters: Counters | None = None
        self.path: Path | None = None
        """Directory of the run, once it has begun."""

    def __enter__(self) -> SimulatedRecording:
        """Put the GPU in place and begin to record."""
        self.path = self._out
        settings = {"gpu": (self._card.key, "asked for")}
        self._writer = RunWriter.open(self._out, new_manifest(self._out.name, (), settings))
        device = SimulatedDevice(self._card, CachingAllocator(AllocatorSettings()))
        self._counters = device.counters
        self._stack.enter_context(in_place(device, self._say))
        self._session = SimulatedSession(device, StepPlan(sys.maxsize, device), self._out, ends_program=False)
        self._session.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End recording and take the GPU away."""
        assert self._session is not None
        assert self._writer is not None
        session, self._session = self._session, None
        try:
            for sentence in self._said:
                session.journal.note(sentence)
            session.finish("exception" if error else "end of record")
        finally:
            self._stack.close()
        with self._writer.adding_to(error):
            notes = (f"Simulated on a {self._card.name}: nothing ran on a GPU.",)
            self._writer.close(notes if self.used_gpu else (*notes, NOTHING_ON_GPU), post=post_missing)

    def step(self) -> None:
        """Mark the end of a step."""
        if self._session is None:
            raise UsageError("recording.step(): the recording is not active", hint="Call step() inside the with block")
        self._session.mark_step()

    def run(self) -> Run:
        """Return the finished run."""
        return load(self._out)

    @property
    def used_gpu(self) -> bool:
        """Return whether anything was put on the simulated GPU."""
        return self._counters is not None and self._counters.alloc_count > 0

    def _say(self, sentence: str) -> None:
        self._said[sentence] = None
