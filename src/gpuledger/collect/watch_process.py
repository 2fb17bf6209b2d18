"""The sampler: a process of its own that reads the cards on an absolute schedule until it is told to stop.

It is started by :mod:`gpuledger.collect.watcher` and talks to it in lines of JSON. When the line from its parent ends,
because the parent was killed, it writes what it has and ends too.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuledger.collect.sensors import CardSensors, children_of, open_cards
from gpuledger.collect.ticks import Edge, find_edge, measure_window
from gpuledger.errors import GpuLedgerError
from gpuledger.model.journal import JournalWriter, Part

SENSOR_NS = 50_000_000
"""How often the sensors that move every 100 ms are read."""

TREE_S = 2.0
"""How often the command's process tree is looked at."""

PART_S = 60.0
"""How often what was read is written: what a crash can cost, and what memory has to hold."""

WHOLE = ""
"""Name of the window of the whole command."""


class Sampler:
    """Reads the cards and keeps the rows of one part.

    Args:
        cards: The cards.
        directory: Where the journal goes.
        interval_ns: Time between two readings of the bytes.
    """

    def __init__(self, cards: list[CardSensors], directory: Path, interval_ns: int) -> None:
        self.on_time = self.readings = self.missed = 0
        self.lost: list[int] = []
        self.pids: set[int] = set()
        self.seen_pids: set[int] = set()
        self.notes: list[str] = []
        self.failure: str | None = None
        self._cards = cards
        self._writer = JournalWriter(directory)
        self._interval_ns = interval_ns
        self._rows: dict[str, list[tuple[Any, ...]]] = {"samples": [], "sensors": [], "process_samples": []}
        self._windows: list[tuple[Any, ...]] = []
        self._names: list[str] = []
        self._named = 0
        self._cpu_before_s = 0.0
        self._facts: dict[str, Any] = {}

    def keep_facts(self, **facts: Any) -> None:
        """Keep facts for the next part."""
        self._facts.update(facts)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Read until ``stopped``; a reading that would come too late is left out and counted."""
        interval_ns, clock_ns = self._interval_ns, time.monotonic_ns
        self._cpu_before_s = time.process_time()
        due_ns = clock_ns()
        sensors_due_ns, part_due_ns = due_ns, due_ns + int(PART_S * 1e9)
        while not stopped():
            wait_ns = due_ns - clock_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            now_ns = clock_ns()
            self.readings += 1
            if now_ns - due_ns <= interval_ns // 2:
                self.on_time += 1
            with_sensors = now_ns >= sensors_due_ns
            if with_sensors:
                sensors_due_ns = now_ns + SENSOR_NS - interval_ns // 2
            self.read(with_sensors=with_sensors)
            if now_ns >= part_due_ns:
                part_due_ns = now_ns + int(PART_S * 1e9)
                self.write()
            due_ns += interval_ns
            late = (clock_ns() - due_ns) // interval_ns
            if late > 0:
                self.missed += late
                due_ns += late * interval_ns

    def read(self, *, with_sensors: bool) -> None:
        """Take one reading of every card that still answers."""
        for card in self._cards:
            if card.index in self.lost:
                continue
            t_ns = time.time_ns()
            memory = card.read_memory()
            if memory is None:
                if card.is_lost():
                    self.lost.append(card.index)
                    self.notes.append(f"GPU {card.index} was lost; its samples end there.")
                continue
            driver_bytes = -1 if memory.driver_bytes is None else memory.driver_bytes
            self._rows["samples"].append((t_ns, card.index, memory.used_bytes, driver_bytes, memory.total_bytes))
            if with_sensors:
                self._read_sensors(card, t_ns)

    def _read_sensors(self, card: CardSensors, t_ns: int) -> None:
        found = card.read_sensors()
        floats = (found.power_average_w, found.power_instant_w, None, found.utilization_frac)
        whole = (found.sm_clock_mhz, found.temperature_c, found.throttle)
        self._rows["sensors"].append(
            (
                t_ns,
                card.index,
                *(float("nan") if value is None else value for value in floats),
                *(-1 if value is None else value for value in whole),
            )
        )
        for pid, held_bytes in card.read_processes():
            self.seen_pids.add(pid)
            self._rows["process_samples"].append((t_ns, card.index, pid, -1 if held_bytes is None else held_bytes))

    def keep_window(self, name: str, card: CardSensors, start: Edge | None, end: Edge | None) -> None:
        """Keep the energy between two edges of one card; nothing where its counter does not move."""
        if start is None or end is None:
            return
        window = measure_window(start, end)
        name_id = -1
        if name != WHOLE:
            name_id = self._named
            self._named += 1
            self._names.append(name)
        nothing = float("nan")
        self._windows.append(
            (
                card.index,
                name_id,
                window.start_ns,
                window.end_ns,
                nothing if window.energy_j is None else window.energy_j,
                nothing if window.uncertainty_j is None else window.uncertainty_j,
                window.ticks,
                -1 if window.throttled_ns is None else window.throttled_ns,
            )
        )

    def write(self) -> None:
        """Write what is waiting as one part; after a failure nothing more is kept, and the command goes on."""
        from gpuledger.model.journal import COLUMNS

        part = Part(names=self._names, notes=self.notes, facts={**self._facts, **self._counts()})
        rows = {**self._rows, "windows": self._windows}
        self._rows = {name: [] for name in self._rows}
        self._windows, self._names, self.notes, self._facts = [], [], [], {}
        if self.failure is not None:
            return
        for table, lines in rows.items():
            if lines:
                part.add(table, **dict(zip(COLUMNS[table], zip(*lines, strict=True), strict=True)))
        try:
            self._writer.write(part)
        except OSError as error:
            self.failure = f"The samples end early: {error.strerror or error}."

    def _counts(self) -> dict[str, Any]:
        return {
            "pids": sorted(self.pids),
            "sampler": {
                "interval_ns": self._interval_ns,
                "readings": self.readings,
                "on_time": self.on_time,
                "missed": self.missed,
                "cpu_s": time.process_time() - self._cpu_before_s,
            },
        }


class Control(threading.Thread):
    """Does what the parent says, one line after the other, beside the sampling."""

    def __init__(
        self, sampler: Sampler, cards: list[CardSensors], lines: Iterator[str], say: Callable[..., None]
    ) -> None:
        super().__init__(name="gpuledger-control", daemon=True)
        self.stopped = threading.Event()
        self._sampler = sampler
        self._cards = cards
        self._lines = lines
        self._say = say
        self._starts: dict[int, tuple[str, list[Edge | None]]] = {}
        self._pid: int | None = None
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Follow the parent until it says stop or is gone."""
        threading.Thread(target=self._listen, name="gpuledger-ears", daemon=True).start()
        while not self.stopped.is_set():
            try:
                order = self._orders.get(timeout=TREE_S)
            except queue.Empty:
                self._look_at_tree()
                continue
            if order is None:
                self._sampler.notes.append("gpuledger was killed; the samples end there, the command went on.")
                break
            if order["do"] == "stop":
                break
            self._follow(order)
        self.stopped.set()

    def _listen(self) -> None:
        for line in self._lines:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def _follow(self, order: dict[str, Any]) -> None:
        if order["do"] == "pid":
            self._pid = order["pid"]
            self._look_at_tree()
        elif order["do"] == "begin":
            self._starts[order["window"]] = order["name"], self._edges(order["at_ns"])
        elif order["do"] == "end":
            self._look_at_tree()
            name, starts = self._starts.pop(order["window"])
            for card, start, end in zip(self._cards, starts, self._edges(order["at_ns"]), strict=True):
                self._sampler.keep_window(name, card, start, end)
        self._say(done=order["do"])

    def _edges(self, at_ns: int) -> list[Edge | None]:
        return [find_edge(at_ns, card.read_energy_mj, card.read_throttled_ns) for card in self._cards]

    def _look_at_tree(self) -> None:
        if self._pid is not None:
            self._sampler.pids |= children_of(self._pid)


def main() -> None:
    """Sample until the parent says stop. Its order is the first line it sends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the parent ends us, after the command
    order = json.loads(sys.stdin.readline())
    try:
        cards, driver_version = open_cards(order["gpus"])
    except GpuLedgerError as error:
        _say(error=error.message, hint=error.hint, exit_code=error.exit_code)
        return
    sampler = Sampler(cards, Path(order["directory"]), order["interval_ns"])
    sampler.keep_facts(recorder="watch", pid=order["pid"], devices=[_facts_of(card, driver_version) for card in cards])
    control = Control(sampler, cards, sys.stdin, _say)
    sampler.read(with_sensors=True)
    sampler.write()
    _say(ready=True, failure=sampler.failure)
    control.start()
    sampler.run(control.stopped.is_set)
    if sampler.seen_pids and sampler.pids and not sampler.seen_pids & sampler.pids:
        sampler.notes.append(
            "The driver's process ids are not those of this machine (a container): a process's bytes are not known, "
            "the card's above its first reading stand for them."
        )
    sampler.keep_facts(closed="end")
    sampler.write()
    _say(ended=True, failure=sampler.failure)


def _facts_of(card: CardSensors, driver_version: str) -> dict[str, Any]:
    memory = card.read_memory()
    return {
        "device_idx": card.index,
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": None if memory is None else memory.total_bytes,
        "driver_version": driver_version,
        "energy_counter": card.read_energy_mj() is not None,
    }


def _say(**words: Any) -> None:
    """Tell the parent; where it is gone, nobody listens."""
    try:
        print(json.dumps(words), flush=True)
    except BrokenPipeError:
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115 - nothing more will be said


if __name__ == "__main__":
    main()
