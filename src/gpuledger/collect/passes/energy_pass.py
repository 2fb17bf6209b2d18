"""The energy pass: unprofiled steps whose edges are known to the GPU's counter.

This process does nothing in it but look at the clock when a step ends. It waits for the GPU at the two edges, and
leaves it idle for a moment before and after, for the base power; the counter is read by another thread or process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.steps import StepCounter
from gpuledger.collect.passes import energy_cards
from gpuledger.model.energy_window import ENERGY_MARKER, WITHOUT_ENERGY

STEPS = 10
"""Steps of the pass, at least, where nobody asks for a number."""

LENGTH_NS = 2_000_000_000
"""Length of the pass; at least so long."""

SETTLE_NS = 300_000_000
"""Steps before its first edge, until power and clock are those of unprofiled steps."""

RUN_OUT_NS = 150_000_000
"""Steps after its last edge, so that the tick around that edge is one of unprofiled steps."""

ENERGY_START = "energy-start"
"""In the run's directory while ranks settle: after which step they all have their first edge."""

AHEAD_STEPS = 8
"""How many steps ahead ranks are told after which step the first edge is; an eighth of those of the settling more."""

IDLE_S = 0.5
"""How long the GPU is left idle, before and after, for its base power."""


class EnergyPass:
    """Told of every step from :meth:`begin` on, until :meth:`end_step` says that it is over.

    Where this process uses no GPU, it is so many unprofiled steps and nothing else.

    Args:
        journal: Where the edges are written.
        steps: The counter of steps.
        say: Takes a sentence on what the pass could not have.
        least_steps: So many steps at least; 0 takes STEPS.
    """

    def __init__(
        self, journal: RankJournal, steps: StepCounter, say: Callable[[str], None], least_steps: int = 0
    ) -> None:
        self.is_open = False
        self._journal = journal
        self._steps = steps
        self._say = say
        self._least_steps = least_steps or STEPS
        self._cards: list[tuple[int, str]] = []
        self._marker: Path | None = None
        self._facts: dict[str, Any] = {}
        self._began_ns = self._began_step = self._out_ns = self._last_end_ns = 0

    def begin(self) -> None:
        """Begin after the step that has just ended."""
        self.is_open = True
        self._cards = energy_cards.cards_in_use()
        self._facts = {"cards": self._cards, "idle_ns": []}
        if self._cards:
            self._journal.fact(energy_pass={"cards": self._cards})
            self._journal.write()  # a program that is killed inside leaves this
            self._open_marker()
            self._leave_idle()
        self._began_ns, self._began_step = time.time_ns(), self._steps.seen
        if not self._cards:
            self._say(WITHOUT_ENERGY)
            self._start()

    def end_step(self) -> bool:
        """A step has ended; return whether the pass is over."""
        now_ns = self._last_end_ns = time.time_ns()
        if "start_ns" not in self._facts:
            if self._may_start(is_settled=now_ns - self._began_ns >= SETTLE_NS):
                self._start()
            return False
        if "end_ns" not in self._facts:
            if not self._is_long_enough(now_ns):
                return False
            self._end(self._wait())
            self._out_ns = time.time_ns()
            if self._cards:
                return False
        elif now_ns - self._out_ns < RUN_OUT_NS:
            return False
        self._close()
        return True

    def finish(self) -> None:
        """The program ends: what the pass has so far is kept, and it is said what is missing."""
        if not self.is_open:
            return
        if "start_ns" not in self._facts or self._steps.seen < self._facts["first_step"]:
            self._say("No energy measurement: the program ended before its first step.")
            self._journal.fact(energy_pass=None)
            self.take_out()
            return
        if "end_ns" not in self._facts:
            self._end(self._last_end_ns)
            count = self._steps.seen - self._facts["first_step"] + 1
            seconds = (self._facts["end_ns"] - self._facts["start_ns"]) / 1e9
            self._say(
                f"The energy measurement was cut short: the program ended after {count} of its steps ({seconds:.2f} s)."
            )
        self._close_marker()
        self.is_open = False

    def take_out(self) -> None:
        """Leave nothing behind."""
        self._close_marker()
        self.is_open = False

    def _close(self) -> None:
        """Leave the GPU idle once more, unless others would have to wait as well."""
        if self._cards and not energy_cards.runs_with_others():
            self._leave_idle()
        self._close_marker()
        self._journal.fact(energy_pass=self._facts)
        self.is_open = False

    def _may_start(self, *, is_settled: bool) -> bool:
        """Return whether the first edge follows this step, the same one for all ranks of this machine.

        Their clocks are past SETTLE_NS some steps apart: the first of them says after which, some steps ahead.
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
        except (OSError, ValueError):  # nobody has said it yet, or is about to
            return False

    def _is_long_enough(self, now_ns: int) -> bool:
        enough_steps = self._steps.seen - self._facts["first_step"] + 1 >= self._least_steps
        return enough_steps and (not self._cards or now_ns - self._facts["start_ns"] >= LENGTH_NS)

    def _start(self) -> None:
        self._facts["start_ns"] = self._wait()
        self._facts["first_step"] = self._steps.seen + 1

    def _end(self, end_ns: int) -> None:
        self._facts |= {"end_ns": end_ns, "last_step": self._steps.seen}
        self._journal.fact(energy_pass=self._facts)
        if self._cards:
            started_ns = time.time_ns()
            self._journal.write()
            self._journal.pause("energy", started_ns)

    def _wait(self) -> int:
        """Return the time at which the GPUs had done what was launched."""
        started_ns = time.time_ns()
        energy_cards.wait_for(self._cards)
        self._journal.pause("energy", started_ns)
        self._steps.restart_clock()
        return time.time_ns()

    def _leave_idle(self) -> None:
        started_ns = time.time_ns()
        energy_cards.wait_for(self._cards)
        idle_ns = time.time_ns()
        time.sleep(IDLE_S)
        self._facts["idle_ns"].append([idle_ns, time.time_ns()])
        self._journal.pause("energy", started_ns)
        self._steps.restart_clock()

    def _open_marker(self) -> None:
        self._marker = self._journal.directory() / ENERGY_MARKER
        self._marker.write_text(json.dumps({"cards": [uuid for _, uuid in self._cards]}), encoding="utf-8")

    def _close_marker(self) -> None:
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
            (self._marker.parent.parent / ENERGY_START).unlink(missing_ok=True)
            self._marker = None
