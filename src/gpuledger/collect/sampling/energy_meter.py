"""Sample the GPUs' energy counters and sensors during an energy measurement, in threads other than the program's.

While the program measures energy, a small file in its rank's directory names its GPUs. Samples are written to a journal
below ``NAME.ledger/samples/journal/``; ``device_idx`` there is the position in ``card_uuids``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gpuledger.cards.card import Card
from gpuledger.cards.energy_edges import EdgeFinder
from gpuledger.cards.opening import find_cards
from gpuledger.collect.sampling.card_log import CardLog
from gpuledger.collect.sampling.process_tree import children_of
from gpuledger.errors import GpuLedgerError
from gpuledger.model.energy_window import ENERGY_JOURNAL, ENERGY_MARKER, METERED_CARDS, Edge, Tick
from gpuledger.model.run_directory import SAMPLE_JOURNALS, rank_directories

if TYPE_CHECKING:
    from gpuledger.model.run_writer import RunWriter

LOOK_S = 0.04
"""Interval between checks for an open energy measurement, in seconds."""

SENSOR_NS = 50_000_000
"""Interval between samples of the sensors; NVML updates them every 100 ms."""

STANDS_STILL_NS = 1_000_000_000
"""Time after which a counter that does not change, or does not exist, is read again."""

LINGER_PERIODS = 2.5
"""Update periods for which a counter is still read after its measurement ended, so that an update follows the end."""


class CardMeter:
    """Samples one GPU in its own thread until it is stopped.

    Args:
        card: The GPU.
        index: Its number in the journal.
        clock_ns: Returns Unix time in ns.
    """

    def __init__(self, card: Card, index: int, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.log = CardLog()
        self.counts = True
        """Whether to read its energy counter."""
        self.failure: str | None = None
        self._card = card
        self._index = index
        self._clock = clock_ns
        self._finder = EdgeFinder(card, clock_ns)
        self._counter_due_ns = self._sensors_due_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gpuledger-meter-{index}", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def due_ns(self) -> int:
        """Return the time at which to call :meth:`read` next, in ns."""
        return min(self._sensors_due_ns, self._counter_due_ns) if self.counts else self._sensors_due_ns

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self.read()
                self._ended.wait(max(self.due_ns - self._clock(), 0) / 1e9)
        except Exception as error:
            self.failure = f"The energy samples stopped: {type(error).__name__}: {error}"

    def read(self) -> None:
        """Read the counter and sensors that are due."""
        now_ns = self._clock()
        if now_ns >= self._sensors_due_ns:
            self._sensors_due_ns = now_ns + SENSOR_NS
            self._read_sensors(now_ns)
        now_ns = self._clock()
        if self.counts and now_ns >= self._counter_due_ns:
            if self._finder.due_ns is None:
                self._finder.want(now_ns, self._keep)
            else:
                self._finder.read()
            self._counter_due_ns = self._finder.due_ns or max(self._counter_due_ns, self._clock())

    def _keep(self, edge: Edge | None) -> None:
        """Store an update of the counter. If it is None, the counter does not change: wait before reading it again."""
        if edge is None:
            self._counter_due_ns = self._clock() + STANDS_STILL_NS
        else:
            self.log.add_tick(self._index, Tick(edge.tick_ns, edge.energy_mj, edge.reading_ns, edge.throttled_ns))

    def _read_sensors(self, t_ns: int) -> None:
        memory, found = self._card.read_memory(), self._card.read_sensors()
        if memory is None:
            return
        self.log.add_memory(t_ns, self._index, memory)
        self.log.add_sensors(t_ns, self._index, found)
        self.log.add_processes(t_ns, self._index, self._card.read_processes())


class EnergyMeter:
    """Samples the GPUs of a run's energy measurements. A context manager that writes the samples on exit.

    Args:
        run_directory: The run.
        cards: Its GPUs.
        until_end: Whether to keep sampling the sensors of a GPU after its measurement ended.
        pid: Returns the id of the recorded program, to find its processes; None before it runs.
        check: As in :class:`gpuledger.model.journal.journal.JournalWriter`.
    """

    def __init__(
        self,
        run_directory: Path,
        cards: list[Card],
        *,
        until_end: bool,
        pid: Callable[[], int | None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_directory = run_directory
        self._cards = {card.uuid: card for card in cards}
        self._uuids = list(self._cards)
        self._until_end = until_end
        self._pid = pid
        self._check = check
        self._meters: dict[str, CardMeter] = {}
        self._closed_ns: dict[str, int] = {}
        self._own_pids: set[int] = set()
        self._idle_w = {card.uuid: _power_w(card) for card in cards}
        self._pids_before = {card.uuid: sorted(pid for pid, _ in card.read_processes() or ()) for card in cards}
        self._failure: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuledger-energy", daemon=True)

    def __enter__(self) -> EnergyMeter:
        """Return the meter, not started yet."""
        return self

    def start(self) -> None:
        """Start a thread that looks for measurements. It blocks the signals that the calling thread blocks."""
        readable = [uuid for uuid, card in self._cards.items() if _can_be_read(card, self._idle_w[uuid])]
        with suppress(OSError):  # the disk is full: the program takes it that no GPU can be read
            (self._run_directory / METERED_CARDS).write_text(json.dumps(readable), encoding="utf-8")
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop sampling and write the samples."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        for meter in self._meters.values():
            meter.end()
        with suppress(OSError, GpuLedgerError):
            self._check()
            (self._run_directory / METERED_CARDS).unlink(missing_ok=True)
        try:
            self.write()
        except GpuLedgerError as failure:
            self._failure = f"The energy samples are missing: {failure.message}."
        except OSError as failure:
            self._failure = f"The energy samples are missing: {failure.strerror or failure}."

    @property
    def failures(self) -> list[str]:
        """Return the reasons why sampling of a GPU ended early."""
        failures = [self._failure, *(meter.failure for meter in self._meters.values())]
        return [failure for failure in failures if failure]

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self.look()

    def look(self, now_ns: int | None = None) -> None:
        """Start sampling GPUs with a newly opened measurement, and stop some time after it has closed."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        wanted = self._wanted()
        for uuid in wanted - set(self._meters):
            pid = self._pid()
            if pid is not None:
                self._own_pids |= children_of(pid)
            meter = self._meters[uuid] = CardMeter(self._cards[uuid], self._uuids.index(uuid))
            meter.start()
        for uuid, meter in self._meters.items():
            if uuid in wanted:
                self._closed_ns.pop(uuid, None)
            elif now_ns > self._closed_ns.setdefault(uuid, now_ns) + self._linger_ns(uuid):
                meter.counts = False
                if not self._until_end:
                    meter.end()

    def _linger_ns(self, uuid: str) -> int:
        return round(LINGER_PERIODS * self._cards[uuid].ticks.counter.period_ns)

    def _wanted(self) -> set[str]:
        """Return the UUIDs of GPUs with an open measurement."""
        found: set[str] = set()
        for _, directory in rank_directories(self._run_directory):
            try:
                marker = json.loads((directory / ENERGY_MARKER).read_text(encoding="utf-8"))
            except (OSError, ValueError):  # not open, or closed just now
                continue
            found |= set(marker["cards"])
        return found & set(self._cards)

    def write(self) -> None:
        """Write the samples as one part; do nothing if no measurement was open.

        Raises:
            OSError: it cannot be written.
        """
        from gpuledger.model.journal.journal import JournalWriter, Part, write_plain

        if not self._meters:
            return
        meters = list(self._meters.values())
        pid = self._pid()
        if pid is not None:
            self._own_pids |= children_of(pid)
        part = Part(
            facts={
                "card_uuids": self._uuids,
                "energy_counters": {uuid: asdict(card.ticks.counter) for uuid, card in self._cards.items()},
                "idle_w": self._idle_w,
                "pids_before": self._pids_before,
                "own_pids": sorted(self._own_pids),
            }
        )
        for meter in meters:
            meter.log.take(part)
        directory = self._run_directory / SAMPLE_JOURNALS / ENERGY_JOURNAL
        JournalWriter(directory, write_plain, self._check).write(part)


def _can_be_read(card: Card, idle_w: float | None) -> bool:
    """Return whether a GPU reports energy or power."""
    return idle_w is not None or card.read_energy_mj() is not None


def _power_w(card: Card) -> float | None:
    found = card.read_sensors()
    return found.power_average_w if found.power_instant_w is None else found.power_instant_w


def open_meter(
    run_directory: Path, *, until_end: bool, pid: Callable[[], int | None], check: Callable[[], None] = lambda: None
) -> EnergyMeter | None:
    """Return a meter of all GPUs of this machine; None if none can be sampled."""
    cards = find_cards()
    return EnergyMeter(run_directory, cards, until_end=until_end, pid=pid, check=check) if cards else None


def begin_meter(run: RunWriter) -> EnergyMeter | None:
    """Start sampling the GPUs' energy for a run of this process; return the meter, or None if no GPU can be sampled."""
    meter = open_meter(run.path, until_end=False, pid=os.getpid, check=run.check)
    if meter is not None:
        meter.start()
    return meter
