"""The energy measurement: unprofiled steps between two times that the GPU's energy counter is read for.

During these steps, this process only reads the clock and launches an event at the end of each step, besides what the
flight recorder does (``flight/last_events.py``). It synchronizes with the GPU at the start and the end of the interval.
After it, it leaves the GPU idle for a moment to measure the idle power. There is no such pause before the interval,
because a short program does not reach its end. Another thread or process reads the counter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.energy_window import ENERGY_MARKER, WITHOUT_ENERGY
from gpuledger.model.pass_facts import UNPROFILED_STEPS

LENGTH_NS = 2_000_000_000
"""Minimum length of the measurement."""

SETTLE_NS = 300_000_000
"""Time spent on steps before the interval, until power and clock have settled to those of unprofiled steps."""

RUN_OUT_NS = 150_000_000
"""Time spent on steps after the interval, so that the counter update around its end covers unprofiled steps, too."""

ENERGY_START = "energy-start"
"""File in the run's directory that gives all ranks the step after which the interval starts."""

AHEAD_STEPS = 8
"""Number of steps between writing that file and the start, plus one eighth of the settling steps."""

MOST_STARTS = 8
"""Number of times that the interval starts at most. It starts again after a step that prepares others.

Such a step compiles code or captures a CUDA graph, or is the first one that replays a graph.
"""

IDLE_S = 0.5
"""Idle time of the GPU after the interval, to measure its idle power."""


class EnergyPass:
    """Runs the energy measurement. Call :meth:`end_step` at every step after :meth:`begin`, until it returns True.

    If this process uses no GPU, the measurement is only a number of unprofiled steps.

    Args:
        journal: Where the times of the interval are written.
        steps: The step counter.
        say: Called with a sentence about what could not be measured.
        least_steps: Minimum number of steps; 0 means UNPROFILED_STEPS.
    """

    def __init__(
        self, journal: RankJournal, steps: StepCounter, say: Callable[[str], None], least_steps: int = 0
    ) -> None:
        self.is_open = False
        self._journal = journal
        self._steps = steps
        self._say = say
        self._least_steps = least_steps or UNPROFILED_STEPS
        self._cards: list[tuple[int, str]] = []
        self._marker: Path | None = None
        self._facts: dict[str, Any] = {}
        self._began_ns = self._began_step = self._out_ns = self._last_end_ns = self._training = 0
        self._starts, self._prepared = 0, (0, 0)
        self._work: energy_cards.WorkEnd | None = None

    @property
    def reads_cards(self) -> bool:
        """Return whether the energy of a GPU is being measured, and not only the time of steps."""
        return self.is_open and bool(self._cards)

    def is_possible(self, settings: RecordSettings) -> bool:
        """Return whether to measure: the user has asked for it, or the energy of a GPU can be read. Says if not."""
        is_possible = settings.passes_asked or energy_cards.any_is_metered(settings.run_directory)
        if not is_possible:
            self._say(WITHOUT_ENERGY)
        return is_possible

    def begin(self) -> None:
        """Begin after the step that has just ended."""
        self.is_open = True
        self._cards = energy_cards.cards_in_use()
        self._facts = {"cards": self._cards, "idle_ns": []}
        if self._cards:
            self._journal.fact(energy_pass={"cards": self._cards})
            self._journal.write()  # kept if the program is killed during the measurement
            self._open_marker()
        self._began_ns, self._began_step = time.time_ns(), self._steps.seen
        self._training = self._steps.optimizer.training
        if not self._cards:
            self._say(WITHOUT_ENERGY)
            self._start()

    def end_step(self) -> bool:
        """Record the end of a step. Return whether the measurement has ended, at the latest with its training."""
        if self._steps.optimizer.training != self._training:
            self._end_early("another training began", self._steps.seen - 1)
            return True
        now_ns = self._last_end_ns = time.time_ns()
        if "start_ns" not in self._facts:
            if self._may_start(is_settled=now_ns - self._began_ns >= SETTLE_NS):
                self._start()
            return False
        if "end_ns" not in self._facts:
            if self._has_prepared():
                self._start()
                return False
            if not self._is_long_enough(now_ns):
                if self._work is not None:
                    self._work.mark()
                return False
            self._end(self._wait(), self._steps.seen)
            self._out_ns = time.time_ns()
            if self._cards:
                return False
        elif now_ns - self._out_ns < RUN_OUT_NS:
            return False
        self._close()
        return True

    def finish(self) -> None:
        """End at program exit. Keeps what was measured, and reports what is missing."""
        if self.is_open:
            self._end_early("the program ended", self._steps.seen)

    def _end_early(self, why: str, last_step: int) -> None:
        """End with a step that is over, because of what has happened since."""
        if "start_ns" not in self._facts or last_step < self._facts["first_step"]:
            begins = f"it begins after {SETTLE_NS / 1e9:.1f} s of unprofiled steps"
            self._say(f"No energy measurement: {begins}, and {why} first.")
            self._journal.fact(energy_pass=None)
        elif "end_ns" not in self._facts:
            self._end(self._last_step_ns(), last_step)
            count = last_step - self._facts["first_step"] + 1
            seconds = (self._facts["end_ns"] - self._facts["start_ns"]) / 1e9
            self._say(f"The energy measurement was cut short: {why} after {count} of its steps ({seconds:.2f} s).")
        self.take_out()

    def take_out(self) -> None:
        """Remove the marker files."""
        self._close_marker()
        self.is_open = False

    def _close(self) -> None:
        """Leave the GPU idle, unless other ranks would have to wait."""
        if self._cards and not energy_cards.runs_with_others():
            self._leave_idle()
        self._close_marker()
        self._journal.fact(energy_pass=self._facts)
        self.is_open = False

    def _may_start(self, *, is_settled: bool) -> bool:
        """Return whether the interval starts after this step. It is the same step for all ranks of this machine.

        Ranks reach SETTLE_NS at different steps. The first one to reach it writes the start step, some steps ahead, to
        a file.
        """
        if not energy_cards.runs_with_others():
            return is_settled
        place = self._journal.directory().parent / ENERGY_START
        if is_settled:
            ahead = AHEAD_STEPS + (self._steps.seen - self._began_step) // 8
            with suppress(OSError), place.open("x", encoding="utf-8") as file:
                file.write(str(self._steps.seen + ahead))
        try:
            return self._steps.seen >= int(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not written yet, or being written
            return False

    def _has_prepared(self) -> bool:
        """Return whether the interval starts again, because a step in it has prepared others. Ranks stay together."""
        is_limited = self._starts >= MOST_STARTS or not self._cards or energy_cards.runs_with_others()
        return not is_limited and self._preparations() != self._prepared

    def _is_long_enough(self, now_ns: int) -> bool:
        enough_steps = self._steps.seen - self._facts["first_step"] + 1 >= self._least_steps
        return enough_steps and (not self._cards or now_ns - self._facts["start_ns"] >= LENGTH_NS)

    def _last_step_ns(self) -> int:
        """Return when the last step had ended on the CPU and on the GPUs, in Unix ns.

        The CPU can have launched many steps that the GPUs have not begun yet.
        """
        reached_ns = None if self._work is None else self._work.reached_ns()
        return max(self._last_end_ns, reached_ns or 0)

    def _start(self) -> None:
        self._facts["start_ns"] = self._wait()
        self._work = energy_cards.WorkEnd(self._cards, self._facts["start_ns"])
        self._facts["first_step"] = self._steps.seen + 1
        self._starts, self._prepared = self._starts + 1, self._preparations()

    def _preparations(self) -> tuple[int, int]:
        return dynamo.compilations(), self._steps.prepared

    def _end(self, end_ns: int, last_step: int) -> None:
        self._facts |= {"end_ns": end_ns, "last_step": last_step}
        self._journal.fact(energy_pass=self._facts)
        if self._cards:
            started_ns = time.time_ns()
            self._journal.write()
            self._journal.pause("energy", started_ns)

    def _wait(self) -> int:
        """Wait for the GPUs. Return the time at which they had finished, in Unix ns.

        They finish the program's own work meanwhile, so this is not a pause.
        """
        energy_cards.wait_for(self._cards)
        self._steps.restart_clock()
        return time.time_ns()

    def _leave_idle(self) -> None:
        energy_cards.wait_for(self._cards)
        idle_ns = time.time_ns()
        time.sleep(IDLE_S)
        self._facts["idle_ns"].append([idle_ns, time.time_ns()])
        self._journal.pause("energy", idle_ns)
        self._steps.restart_clock()

    def _open_marker(self) -> None:
        self._marker = self._journal.directory() / ENERGY_MARKER
        self._marker.write_text(json.dumps({"cards": [uuid for _, uuid in self._cards]}), encoding="utf-8")

    def _close_marker(self) -> None:
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
            (self._marker.parent.parent / ENERGY_START).unlink(missing_ok=True)
            self._marker = None
