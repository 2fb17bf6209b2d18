"""One test, recorded while it runs and judged afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from gpuledger.errors import GpuLedgerError
from gpuledger.integrations.pytest_marks import FIXTURE, GROWTH, MEMORY, PEAK, UNJUDGED, UNUSED_GPU, MarkedLimits
from gpuledger.integrations.pytest_measure import TestBytes, grown_bytes, measure_test, over_growth, over_memory

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.integrations.simulated_recording import SimulatedRecording
    from gpuledger.model.run import Run
    from gpuledger.services.recording import Recording


class RecordedTest:
    """A test and the recording of its call. Where it has the fixture, what that recorded is what counts."""

    def __init__(self, item: Any, limits: MarkedLimits, make: Callable[[], Recording | SimulatedRecording]) -> None:
        self._item = item
        self._limits = limits
        self._theirs: Recording | SimulatedRecording | None = getattr(item, "funcargs", {}).get(FIXTURE)
        self._recording = self._theirs or make()
        self._run: Run | None = None
        self._found: TestBytes | None = None
        self._not_measured = ""
        self._outer_run: Path | None = None
        if limits.growth is not None and self._theirs is not None:
            pytest.fail(f"{GROWTH}: the test also records with {FIXTURE}; use only one of the two", pytrace=False)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what happens inside, and give the test's report its peak bytes, failed or not."""
        try:
            with nullcontext() if self._theirs is not None else self._recording:
                yield
        finally:
            self._measure()

    def repeat(self) -> None:
        """Call the test all but one of the times its growth is measured over, after an empty first step."""
        if self._limits.growth is None:
            return
        self._recording.step()
        for _ in range(self._limits.growth.warmup + self._limits.growth.calls - 1):
            self._item.runtest()
            self.end_call()

    def end_call(self) -> None:
        """End a call for the growth limit. Collects garbage first, so that reference cycles do not count."""
        if self._limits.growth is not None:
            gc.collect()
            self._recording.step()

    def judge(self, *, kept: bool) -> None:
        """Fail the test if it exceeds its limits, or if they could not be measured."""
        if self._outer_run is not None:
            return  # reported at the end: a test must not fail because `gpuledger run` records it
        if self._run is None or self._not_measured:
            if self._limits.of_bytes:
                why = self._not_measured or f"{FIXTURE} was not started; use `with {FIXTURE}:` in the test"
                pytest.fail(f"{MEMORY}: not measured: {why}", pytrace=False)
            return
        place = self._run.path if kept else None
        limit, growth = self._limits.memory_bytes, self._limits.growth
        if limit is not None and self._found is not None and self._found.peak_bytes > limit:
            pytest.fail(f"{MEMORY}: {over_memory(self._found, limit, place)}", pytrace=False)
        if growth is not None:
            grown, accounts = grown_bytes(self._run, growth.warmup)
            if grown > growth.limit_bytes:
                message = over_growth(grown, growth.limit_bytes, growth.calls, accounts, place)
                pytest.fail(f"{GROWTH}: {message}", pytrace=False)

    def _measure(self) -> None:
        """Read what was recorded; a fixture that the test never began recorded nothing."""
        if self._recording.path is None:
            return
        self._outer_run = getattr(self._recording, "recorded_by", None)
        if self._outer_run is not None:
            self._item.user_properties.append((UNJUDGED, self._outer_run.name))
            return
        try:
            self._run = self._recording.run()
            self._found = measure_test(self._run)
        except GpuLedgerError as error:
            self._not_measured = error.message
            return
        if not getattr(self._recording, "used_gpu", True):
            self._item.user_properties.append((UNUSED_GPU, self._item.nodeid))
        self._item.user_properties.append((PEAK, self._found.peak_bytes if self._found else 0))
