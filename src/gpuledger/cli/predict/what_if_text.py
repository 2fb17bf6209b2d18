"""Allocator settings by the memory that they would reserve, as text and JSON."""

from __future__ import annotations

from typing import Any

from gpuledger.analyze.memory.failures.replayed_settings import Verdict
from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable
from gpuledger.report.text.oom_text import VERDICTS
from gpuledger.simulate.estimate.what_if import SettingOutcome
from gpuledger.units import format_bytes


def what_if_lines(outcomes: tuple[SettingOutcome, ...], terminal: Terminal) -> list[str]:
    """Return settings by what they would reserve, the least first."""
    default = next(outcome.peak_reserved_bytes for outcome in outcomes if not outcome.alloc_conf)
    rows = tuple(
        (
            outcome.alloc_conf or "default",
            format_bytes(outcome.peak_reserved_bytes),
            format_bytes(outcome.peak_reserved_bytes - default),
        )
        for outcome in outcomes
    )
    columns = (
        TextColumn("PYTORCH_CUDA_ALLOC_CONF"),
        TextColumn("peak reserved", right=True),
        TextColumn("change", right=True),
    )
    return TextTable(columns, rows).lines(terminal)


def what_if_document(outcomes: tuple[SettingOutcome, ...]) -> list[dict[str, Any]]:
    """Return the same as one JSON document."""
    return [
        {
            "alloc_conf": outcome.alloc_conf,
            "peak_reserved_bytes": outcome.peak_reserved_bytes,
            "peak_allocated_bytes": outcome.peak_allocated_bytes,
        }
        for outcome in outcomes
    ]


def verdict_lines(verdicts: tuple[Verdict, ...], terminal: Terminal) -> list[str]:
    """Return whether a failed request would have fitted with each setting."""
    rows = tuple((one.alloc_conf or "default", VERDICTS[one.fits], one.note) for one in verdicts)
    columns = (TextColumn("PYTORCH_CUDA_ALLOC_CONF"), TextColumn("failed request"), TextColumn("", shrinks=True))
    return TextTable(columns, rows).lines(terminal)


def verdict_document(verdicts: tuple[Verdict, ...]) -> list[dict[str, Any]]:
    """Return the same as JSON."""
    return [{"alloc_conf": one.alloc_conf, "fits": one.fits, "note": one.note} for one in verdicts]
