"""Measure one operator on one device in one mode. The result is a record, even if it fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.errors import GpuLedgerError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.database.records import Record
from gpuledger.ops.database.statistics import Spread, summarize
from gpuledger.ops.measure.blocks import Clock, MeasuredBlock, NoCounterError, Runner, energy_blocks, time_blocks
from gpuledger.ops.measure.copies import Copy, make_copies, why_no_graph
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.runners import GraphRunner, first_line, host_ns, kernels_of, make_runner, queued_ns

DIGITS = 7
"""Significant digits of stored values. A clock with a resolution of 1 µs has fewer."""
HOPELESS_FRAC = 0.45
"""Largest share of the free memory for an operator's inputs, so that there is room for the output."""


class CardLostError(GpuLedgerError):
    """An operator broke the process's connection to the GPU: nothing more can run in this process."""


def measure_one(key: OperatorKey, mode: Mode, place: Device, method: Method, clock_ns: Clock = time.time_ns) -> Record:
    """Return the record of one operator. A failure is a record with the reason.

    Raises:
        NoCounterError: energy was requested, and the GPU's counter does not change.
    """
    work = work_of(key)
    blank = Record(
        key.digest,
        place.environment.digest,
        {"mode": mode.value, "inputs": "normal"},
        measured_ns=clock_ns(),
        flops=work.flops,
        bytes=work.bytes,
    )
    try:
        refuse_too_large(key, place)
        with torch.no_grad(), allowed(key):
            return _measured(blank, key, mode, place, method, clock_ns)
    except NoCounterError:
        raise
    except Exception as error:
        _let_go(place)
        return replace(blank, status="failed", reason=_reason(error))


def refuse_too_large(key: OperatorKey, place: Device) -> None:
    """Raise MemoryError if an operator's inputs need most of the free memory."""
    read_bytes, free_bytes = work_of(key).read_bytes, place.free_bytes()
    if read_bytes > HOPELESS_FRAC * free_bytes:
        raise MemoryError(
            f"out of memory: its inputs need {read_bytes >> 20} MiB, but only {free_bytes >> 20} MiB are free"
        )


@contextmanager
def allowed(key: OperatorKey) -> Iterator[None]:
    """Allow TF32 for products if the key says so, and restore the settings afterwards."""
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]  # not annotated
    kept = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = "tf32" if key.flags.get("tf32") else "ieee"
    try:
        yield
    finally:
        for setting, precision in zip(settings, kept, strict=True):
            setting.fp32_precision = precision


def _measured(blank: Record, key: OperatorKey, mode: Mode, place: Device, method: Method, clock_ns: Clock) -> Record:
    calls = make_copies(key, mode, place)
    runner, why = make_runner(calls, method.block_ns, on_card=place.on_card, why_no_graph=why_no_graph(calls[0]))
    times = time_blocks(runner, method, place.sensors, clock_ns)
    span = summarize([block.call_ns for block in times])
    launch = _launch(runner, calls, span.median) if place.on_card else {}
    windows: list[MeasuredBlock] = []
    if method.energy and place.sensors is not None:
        windows = energy_blocks(runner, span.median * runner.unit_calls, method, place.sensors, clock_ns)
    how = {**blank.method, "how": runner.how.value, "copies": runner.copies, **({"why": why} if why else {})}
    timed = replace(
        blank,
        method=how,
        time_median_ns=span.median,
        time_low_ns=span.low,
        time_high_ns=span.high,
        blocks=_documents(times, windows, span, launch),
        kernels=kernels_of(calls[0]) if place.on_card else (),
    )
    return _with_energy(timed, windows)


def _launch(runner: Runner, calls: Sequence[Copy], call_ns: float) -> dict[str, float]:
    """Return the host time of launching one call, and the time of a call that is launched separately."""
    launch_ns = host_ns(calls, call_ns)
    if not isinstance(runner, GraphRunner):
        return {"host_ns": launch_ns}
    return {"host_ns": launch_ns, "queued_ns": queued_ns(runner, calls, call_ns, launch_ns)}


def _with_energy(record: Record, windows: Sequence[MeasuredBlock]) -> Record:
    """Return the record with the energy of one call. The interval is the windows' spread or the counter's error."""
    joules = [block.call_j for block in windows if block.call_j is not None]
    if not joules:
        return record
    spread = summarize(joules)
    errors = [block.uncertainty_j for block in windows if block.uncertainty_j is not None]
    half_j = max((spread.high - spread.low) / 2, max(errors, default=0.0) / len(joules) ** 0.5)
    return replace(
        record,
        energy_median_j=spread.median,
        energy_low_j=min(spread.low, spread.median - half_j),
        energy_high_j=max(spread.high, spread.median + half_j),
    )


def _documents(
    times: Sequence[MeasuredBlock], windows: Sequence[MeasuredBlock], span: Spread, launch: dict[str, float]
) -> tuple[dict[str, Any], ...]:
    """Return the blocks of a record: a summary, then each burst and each window."""
    burst_clocks = [block.sm_clock_mhz for block in times if block.sm_clock_mhz is not None]
    summary = {
        "kind": "summary",
        "count": span.count,
        "outliers": span.outliers,
        "mean_3_sigma_ns": _short(span.mean_3_sigma),
        **{name: _short(value) for name, value in launch.items()},
        "throttled_bursts": sum(block.is_throttled for block in times),
        "throttled_windows": sum(block.is_throttled for block in windows),
        "burst_clock_mhz": None if not burst_clocks else sorted(burst_clocks)[len(burst_clocks) // 2],
    }
    return (
        summary,
        *({"kind": "time", **_known(block)} for block in times),
        *({"kind": "energy", **_known(block)} for block in windows),
    )


def _known(block: MeasuredBlock) -> dict[str, Any]:
    return {name: _short(value) for name, value in asdict(block).items() if value is not None}


def _short(value: Any) -> Any:
    """Return a number rounded to significant digits; other digits would be most of a database."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _reason(error: Exception) -> str:
    """Return the reason of a failure in one line. It begins with "out of memory" if that is the cause."""
    text = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        return f"out of memory: {text}"
    return text if isinstance(error, (MemoryError, GpuLedgerError)) else f"{type(error).__name__}: {text}"


def _let_go(place: Device) -> None:
    """Free the memory of a failed operator.

    Raises:
        CardLostError: the GPU no longer responds to this process.
    """
    if not place.on_card:
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise CardLostError(f"{place.device}: {first_line(error)}") from error
