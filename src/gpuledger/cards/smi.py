"""GPUs read with the nvidia-smi command, if NVML's library cannot be loaded. Fewer values, at a lower rate."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from gpuledger.cards.card import BareCard, MemoryReading, SensorReading
from gpuledger.cards.smi_cells import Field, cells_of, parse_cell
from gpuledger.cards.vendor import CardList
from gpuledger.errors import NoDeviceError
from gpuledger.processes.parent_death import dying_with

TOOL = "nvidia-smi"
SHORTEST_NS = 10_000_000
"""nvidia-smi writes at most about 98 rows per second (H200)."""

NOTE = (
    "NVML's library cannot be loaded, so nvidia-smi samples the GPUs, at most every 10 ms. "
    "It reports no energy counter and no memory per process."
)
_ALWAYS = ("index", "uuid", "name", "driver_version", "memory.used", "memory.total")
_NEW = (
    *_ALWAYS, "memory.reserved", "power.draw.average", "power.draw.instant", "utilization.gpu", "clocks.sm",
    "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip
_OLD = (*_ALWAYS, "power.draw", "utilization.gpu", "clocks.sm", "temperature.gpu")
_PATIENCE_S = 60.0

Row = dict[str, Any]


@dataclass(frozen=True)
class SmiQuery:
    """The columns that this version of nvidia-smi supports, and the meaning of each."""

    tool: str
    fields: tuple[Field, ...]

    def command(self, *more: str) -> list[str]:
        """Return nvidia-smi's command line."""
        names = ",".join(field.name for field in self.fields)
        return [self.tool, f"--query-gpu={names}", "--format=csv,noheader", *more]

    def row_of(self, line: str) -> Row | None:
        """Return the values of a line; None for an incomplete line or a message."""
        cells = cells_of(line, ", ")
        if len(cells) != len(self.fields):
            return None
        try:
            row = {field.kind: parse_cell(field, cell) for field, cell in zip(self.fields, cells, strict=True)}
        except ValueError:
            return None
        return None if row["index"] is None else row


class SmiCard(BareCard):
    """One GPU. ``row`` contains the last values from nvidia-smi."""

    def __init__(self, row: Row, stream: SmiStream) -> None:
        super().__init__(
            int(row["index"]),
            str(row["name"] or "unknown GPU"),
            str(row["uuid"] or ""),
            driver_version=str(row["driver_version"] or ""),
            reason=f"not reported by {TOOL}",
        )
        self.row = row
        self._stream = stream

    def read_memory(self) -> MemoryReading | None:
        """Return the GPU's memory, rounded to MiB; None once nvidia-smi has ended."""
        row = self.row
        if row["used_bytes"] is None or self.is_lost():
            return None
        return MemoryReading(row["used_bytes"], row.get("driver_bytes"), row["total_bytes"] or 0)

    def read_sensors(self) -> SensorReading:
        """Return the values of the slower sensors."""
        row = self.row
        return SensorReading(
            power_average_w=row.get("power_average_w"),
            power_instant_w=row.get("power_instant_w"),
            utilization_frac=row["utilization_frac"],
            sm_clock_mhz=row["sm_clock_mhz"],
            temperature_c=row["temperature_c"],
            throttle=row.get("throttle"),
        )

    def is_lost(self) -> bool:
        """Return whether nvidia-smi has ended."""
        return self._stream.has_ended


class SmiStream:
    """A running nvidia-smi. Its output updates the rows of its GPUs.

    It writes to a pseudo-terminal, because it would buffer output to a pipe, which arrives seconds late.
    """

    def __init__(self, query: SmiQuery, rows: Sequence[Row], interval_ns: int) -> None:
        self.has_ended = False
        self.cards = [SmiCard(row, self) for row in rows]
        self._query = query
        ours, its = os.openpty()
        die_with_us = dying_with(os.getpid())
        every_ms = max(interval_ns, SHORTEST_NS) // 1_000_000
        self._process = subprocess.Popen(
            query.command("-lms", str(every_ms)),
            stdin=subprocess.DEVNULL,
            stdout=its,
            preexec_fn=die_with_us,
        )
        os.close(its)
        self._lines = os.fdopen(ours, "r", encoding="utf-8", errors="replace")
        threading.Thread(target=self._follow, name="gpuledger-smi", daemon=True).start()

    def _follow(self) -> None:
        cards = {card.row["index"]: card for card in self.cards}
        for line in _lines_until_the_end(self._lines):
            row = self._query.row_of(line)
            if row is not None and row["index"] in cards:
                cards[row["index"]].row = row
        self.has_ended = True

    def stop(self) -> None:
        """Kill nvidia-smi. It has inherited an ignored SIGTERM."""
        self._process.kill()
        self._process.wait()


def _lines_until_the_end(stream: IO[str]) -> Iterator[str]:
    with suppress(OSError):  # the other end of the terminal is closed
        yield from stream


def open_smi(interval_ns: int) -> CardList | None:
    """Return the GPUs from nvidia-smi, sampled every ``interval_ns``; None if the command does not exist.

    Raises:
        NoDeviceError: it lists no GPU.
    """
    tool = shutil.which(TOOL)
    if tool is None:
        return None
    query, rows = _asked_once(tool)
    stream = SmiStream(query, rows, interval_ns)
    version = str(rows[0]["driver_version"] or "")
    return CardList(stream.cards, version, notes=(NOTE,), shortest_interval_ns=SHORTEST_NS, stop=stream.stop)


def _asked_once(tool: str) -> tuple[SmiQuery, list[Row]]:
    """Return the supported columns and a row per GPU. An old nvidia-smi rejects columns that it does not know."""
    said = ""
    for names in (_NEW, _OLD):
        query = SmiQuery(tool, tuple(Field.named(name) for name in names))
        try:
            done = subprocess.run(query.command(), capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoDeviceError(f"{tool}: no answer: {error}") from error
        rows = [row for line in done.stdout.splitlines() if (row := query.row_of(line)) is not None]
        if rows:
            return query, rows
        said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0]
    raise NoDeviceError(f"{TOOL}: {said}")
