"""The sampler: a separate process that reads the GPUs on an absolute schedule until it is stopped.

It is started by :mod:`.watcher` and exchanges lines of JSON with it. If its input ends because the parent was killed,
it writes the remaining samples and exits. One thread reads, counts and writes; another one only passes on the parent's
messages.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.cards.card import Card, Processes
from gpuledger.cards.energy_windows import EnergyWindows
from gpuledger.cards.opening import open_cards
from gpuledger.collect.sampling.card_log import CardLog
from gpuledger.collect.sampling.process_tree import ProcessFamily
from gpuledger.errors import GpuLedgerError
from gpuledger.model.energy_window import WindowEnergy
from gpuledger.model.journal.journal import JournalWriter, Part, write_compressed

SENSOR_NS = 50_000_000
"""Interval between samples of the sensors, which NVML updates every 100 ms."""

PROCESSES_NS = 200_000_000
"""Longest interval between lists of a GPU's processes. One list takes as long as a sample of all sensors."""

LOOK_NS = 5_000_000_000
"""Interval between checks of the command's process tree and of the parent process."""

PART_NS = 60_000_000_000
"""Interval between written parts. It bounds the loss after a crash, and the memory."""

PART_ROWS = 50_000
"""Maximum number of rows of one table in memory; at short sampling intervals, parts are written more often."""

NAP_NS = 10_000_000
"""Longest delay of an order. A plain sleep uses less CPU than a wait that an order can end."""

WHOLE = ""
"""Name of the energy window of the whole command."""

Order = dict[str, Any]


@dataclass(frozen=True)
class Surroundings:
    """The sampler's clocks and its connection to the parent. Tests replace them.

    ``wait_ns`` returns the parent's next order, or None if none arrives within these nanoseconds; ``{"do": "gone"}``
    means that the parent was killed.
    """

    steady_ns: Callable[[], int]
    unix_ns: Callable[[], int]
    wait_ns: Callable[[int], Order | None]
    cpu_s: Callable[[], float] = time.process_time
    parent: Callable[[], int] = os.getppid


@dataclass(frozen=True)
class _Asked:
    """A GPU's processes, valid until its bytes change or until ``due_ns``."""

    used_bytes: int
    due_ns: int
    processes: Processes


class Sampler:
    """Samples the GPUs, and writes the samples.

    Args:
        cards: The GPUs.
        writer: Writes the parts.
        interval_ns: Time between two samples of the memory.
        world: Clocks and orders.
    """

    def __init__(self, cards: Sequence[Card], writer: JournalWriter, interval_ns: int, world: Surroundings) -> None:
        self.on_time = self.readings = self.missed = 0
        self.family = ProcessFamily()
        self.failure: str | None = None
        self._cards = list(cards)
        self._writer = writer
        self._interval_ns = interval_ns
        self._world = world
        self._log = CardLog()
        self._windows = EnergyWindows(cards, self._keep_window, world.unix_ns)
        self._names: list[str] = []
        self._named = 0
        self._notes: list[str] = []
        self._facts: dict[str, Any] = {}
        self._failed: dict[int, int] = {}
        self._processes: dict[int, _Asked] = {}
        self._cpu_before_s = world.cpu_s()
        self._parent = world.parent()
        self._stopping = False
        self._due_ns = self._sensors_due_ns = self._look_due_ns = self._part_due_ns = 0

    def prepare(self, notes: Sequence[str] = (), **facts: Any) -> None:
        """Read the first sample, which is the baseline, and write it with the facts and notes."""
        self._notes += notes
        self._facts.update(facts)
        self._read(self._world.steady_ns())
        self.write()

    def run(self) -> None:
        """Sample until the parent sends stop. A sample that would be late is skipped and counted."""
        self._cpu_before_s = self._world.cpu_s()
        self._due_ns = now_ns = self._world.steady_ns()
        self._look_due_ns, self._part_due_ns = now_ns + LOOK_NS, now_ns + PART_NS
        wait_ns, steady_ns = self._world.wait_ns, self._world.steady_ns
        while not (self._stopping and self._windows.due_ns is None):
            order = wait_ns(self._idle_ns(now_ns))
            if order is not None:
                self._follow(order)
            now_ns = steady_ns()
            if now_ns >= self._due_ns:
                self._take_reading(now_ns)
                now_ns = self._plan()
            if self._windows.due_ns is not None:
                now_ns = self._look_for_edges(now_ns)
        self._note_the_end()
        self._facts["closed"] = "end"
        self.write()

    def _idle_ns(self, now_ns: int) -> int:
        """Return the time in ns until the next work is due."""
        idle_ns = self._due_ns - now_ns
        if self._windows.due_ns is not None and self._has_room(now_ns):
            idle_ns = min(idle_ns, self._windows.due_ns - self._world.unix_ns())
        return max(idle_ns, 0)

    def _has_room(self, now_ns: int) -> bool:
        """Return whether there is time to query an energy counter before the next sample is due."""
        return self._due_ns - now_ns >= min(self._windows.read_ns, self._interval_ns * 4 // 5)

    def _look_for_edges(self, now_ns: int) -> int:
        """Query the energy counters that are due, right after a sample, so that the next is not delayed. Return now."""
        due_ns = self._windows.due_ns
        if due_ns is None or due_ns > self._world.unix_ns() or not self._has_room(now_ns):
            return now_ns
        self._windows.read()
        return self._plan()

    def _take_reading(self, now_ns: int) -> None:
        self.readings += 1
        if now_ns - self._due_ns <= self._interval_ns // 2:
            self.on_time += 1
        if self._read(now_ns):
            self._keep_house(now_ns)
        self._due_ns += self._interval_ns

    def _keep_house(self, now_ns: int) -> None:
        """List the processes and write a part, if due."""
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + LOOK_NS
            self._look()
        if now_ns >= self._part_due_ns or len(self._log) >= PART_ROWS:
            self._part_due_ns = now_ns + PART_NS
            self.write()

    def _plan(self) -> int:
        """Skip and count samples that are late; return the time in ns."""
        now_ns = self._world.steady_ns()
        if now_ns - self._due_ns >= self._interval_ns:
            late = (now_ns - self._due_ns) // self._interval_ns
            self.missed += late
            self._due_ns += late * self._interval_ns
        return now_ns

    def _read(self, now_ns: int) -> bool:
        """Sample every GPU that still answers; return whether the slower sensors were due and read."""
        with_sensors = now_ns >= self._sensors_due_ns
        if with_sensors:
            self._sensors_due_ns = now_ns + SENSOR_NS - self._interval_ns // 2
        for card in self._cards:
            t_ns = self._world.unix_ns()
            memory = card.read_memory()
            if memory is None:
                self._miss(card)
                continue
            self._log.add_memory(t_ns, card.index, memory)
            if with_sensors:
                self._log.add_sensors(t_ns, card.index, card.read_sensors())
                processes = self._processes_of(card, memory.used_bytes, now_ns)
                self._log.add_processes(t_ns, card.index, processes)
                self.family.see(pid for pid, _ in processes)
        return with_sensors

    def _processes_of(self, card: Card, used_bytes: int, now_ns: int) -> Processes:
        """Return the GPU's processes, listed again if its bytes have changed, or after 200 ms."""
        known = self._processes.get(card.index)
        if known is None or known.used_bytes != used_bytes or now_ns >= known.due_ns:
            known = _Asked(used_bytes, now_ns + PROCESSES_NS, card.read_processes() or [])
            self._processes[card.index] = known
        return known.processes

    def _miss(self, card: Card) -> None:
        if card.is_lost():
            self._cards = [other for other in self._cards if other is not card]
            self._notes.append(f"GPU {card.index} stopped responding, and its samples end there.")
        else:
            self._failed[card.index] = self._failed.get(card.index, 0) + 1

    def _look(self) -> None:
        self.family.look()
        if self._world.parent() != self._parent:  # a process forked by the parent can keep its pipe open
            self._follow({"do": "gone"})

    def _follow(self, order: Order) -> None:
        """Carry out an order of the parent."""
        match order["do"]:
            case "pid":
                self.family.follow(order["pid"])
            case "begin":
                self._windows.begin(order["window"], order["name"], order["at_ns"])
            case "end":
                self.family.look()
                self._windows.end(order["window"], order["at_ns"])
            case "gone" if not self._stopping:
                self._notes.append("gpuledger was killed, and the samples end there.")
                self._windows.end_all(self._world.unix_ns())
                self._stopping = True
            case "stop":
                self._stopping = True

    def _keep_window(self, name: str, index: int, window: WindowEnergy) -> None:
        name_id = -1
        if name != WHOLE:
            name_id = self._named
            self._named += 1
            self._names.append(name)
        self._log.add_window(name_id, index, window)

    def _note_the_end(self) -> None:
        if self.family.is_elsewhere:
            self._facts["processes_known"] = False
            self._notes.append(
                "The driver reports process ids from outside this container, so memory per process is unknown. "
                "The GPU's memory above its first sample is shown instead."
            )
        self._notes += [
            f"GPU {index} reported no memory in {count:,} samples." for index, count in self._failed.items()
        ]

    def write(self) -> None:
        """Write the waiting samples as one part. After a failure, no samples are stored, and the command continues."""
        part = Part(names=self._names, notes=self._notes, facts={**self._facts, **self._counts()})
        self._log.take(part)
        self._names, self._notes, self._facts = [], [], {}
        if self.failure is not None:
            return
        try:
            self._writer.write(part)
        except OSError as error:
            self.failure = f"The samples stopped early: {error.strerror or error}."

    def _counts(self) -> dict[str, Any]:
        return {
            "pids": sorted(self.family.on_card),
            "sampler": {
                "interval_ns": self._interval_ns,
                "readings": self.readings,
                "on_time": self.on_time,
                "missed": self.missed,
                "cpu_s": self._world.cpu_s() - self._cpu_before_s,
            },
        }


def listen(lines: Iterable[str]) -> Callable[[int], Order | None]:
    """Return a function that waits the given time in ns for the next order; a thread reads orders from ``lines``."""
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def hear() -> None:
        for line in lines:
            if line.endswith("\n"):  # an incomplete line: the parent was killed while it wrote
                orders.put(json.loads(line))
        orders.put({"do": "gone"})

    def wait_ns(patience_ns: int) -> Order | None:
        if patience_ns > NAP_NS:
            try:
                return orders.get(timeout=patience_ns / 1e9)
            except queue.Empty:
                return None
        if patience_ns:
            time.sleep(patience_ns / 1e9)
        return None if orders.empty() else orders.get_nowait()

    threading.Thread(target=hear, name="gpuledger-ears", daemon=True).start()
    return wait_ns


def main() -> None:
    """Sample until the parent sends stop. The first line of input is the first order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the parent stops this process after the command
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return
    order = json.loads(line)
    try:
        there = open_cards(tool_interval_ns=order["interval_ns"])
        cards = there.choose(order["gpus"])
    except GpuLedgerError as error:
        _say(error=f"watch: {error.message}", hint=error.hint)
        return
    world = Surroundings(time.monotonic_ns, time.time_ns, listen(sys.stdin))
    os.chdir(order["run_directory"])  # stays valid if the directory is renamed later
    writer = JournalWriter(Path("rank-0", "journal"), write_compressed)
    sampler = Sampler(cards, writer, max(order["interval_ns"], there.shortest_interval_ns), world)
    if order["pid"] is not None:
        sampler.family.follow(order["pid"])
    sampler.prepare(there.notes, recorder="watch", pid=order["pid"], devices=[_facts_of(card) for card in cards])
    _say(ready=True, failure=sampler.failure)
    sampler.run()
    there.close()
    _say(ended=True, failure=sampler.failure)


def _facts_of(card: Card) -> dict[str, Any]:
    """Return a GPU's entry in a run's manifest."""
    memory = card.read_memory()
    return {
        "device_idx": card.index,
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": None if memory is None else memory.total_bytes,
        "driver_version": card.driver_version,
        "energy_counter": card.read_energy_mj() is not None,
    }


def _say(**words: Any) -> None:
    """Send a line to the parent; if it has ended, do nothing."""
    try:
        print(json.dumps(words), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - discards all later lines


if __name__ == "__main__":
    main()
