"""Samples and tokens per step, per second and per unit of energy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.steps import step_times, unprofiled_steps

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class CallKind:
    """Calls of a generation loop: ``prefill`` has several tokens per row, ``decode`` has one.

    ``token_energy_j`` divides the measured energy by time; None if the energy measurement contains none of these calls.
    """

    name: str
    calls: int
    rows: float
    length: float
    call_ns: float
    tokens_per_s: float
    token_energy_j: float | None


@dataclass(frozen=True)
class Rates:
    """Samples per step, per second and per unit of energy; None if unknown.

    ``source`` describes where the batch size comes from. ``kinds`` is empty except for generation loops.
    """

    batch: int
    source: str
    samples_per_s: float | None
    sample_energy_j: float | None
    kinds: tuple[CallKind, ...]


def find_rates(rank: Rank, device_idx: int | None = None) -> Rates | None:
    """Return samples and tokens of one process; None if no module was called with a tensor.

    Source: the first dimension of the first tensor argument of the outermost module; the median unprofiled step; the
    energy measurement.
    """
    inputs = rank.manifest.inputs
    if inputs is None:
        return None
    shape, step, energy = inputs.shape, step_times(rank).median_ns, step_energy(rank, device_idx)
    batch = shape[0]
    path = module_paths(rank).get(inputs.module_id, "") or "the outermost module"
    kinds = _call_kinds(rank, device_idx)
    mixed = len(kinds) > 1
    return Rates(
        batch=batch,
        source=f"first input of {path}, {' × '.join(map(str, shape))}",
        samples_per_s=batch / step * 1e9 if step and not mixed else None,
        sample_energy_j=energy.energy_j / batch if energy is not None and batch and not mixed else None,
        kinds=kinds,
    )


def _call_kinds(rank: Rank, device_idx: int | None) -> tuple[CallKind, ...]:
    """Return the kinds of calls of a generation loop; empty if steps are training steps or inputs are not tokens."""
    own_ns = unprofiled_steps(rank, kind="call")
    shapes = _shapes_of(rank.manifest.calls, own_ns)
    if not own_ns or not shapes or rank.manifest.inputs is None or not rank.manifest.inputs.tokens:
        return ()
    joules = _joules_of(rank, device_idx, own_ns)
    named = {step: DECODE if length == 1 else PREFILL for step, (_, length) in shapes.items()}
    return tuple(
        _kind(name, [step for step in named if named[step] == name], shapes, own_ns, joules)
        for name in (PREFILL, DECODE)
        if name in named.values()
    )


def _shapes_of(calls: Sequence[Sequence[int]], steps: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return rows and length of the steps with known shapes."""
    ordered = sorted(steps)
    found = {}
    for first, last, rows, length in calls:
        if length > 0:
            known = ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]
            found.update(dict.fromkeys(known, (rows, length)))
    return found


def _joules_of(rank: Rank, device_idx: int | None, own_ns: dict[int, int]) -> dict[int, float]:
    """Return the energy of each step of the energy measurement, divided by time."""
    energy = step_energy(rank, device_idx)
    edges = rank.manifest.energy_pass
    if energy is None or edges is None or edges.first_step is None or edges.last_step is None:
        return {}
    inside = [step for step in sorted(own_ns) if edges.first_step <= step <= edges.last_step]
    total_ns = sum(own_ns[step] for step in inside)
    return {step: energy.energy_j * energy.steps * own_ns[step] / total_ns for step in inside} if total_ns else {}


def _kind(
    name: str,
    steps: list[int],
    shapes: dict[int, tuple[int, int]],
    own_ns: dict[int, int],
    joules: dict[int, float],
) -> CallKind:
    rows, lengths = (np.array([shapes[step][place] for step in steps], dtype=np.float64) for place in (0, 1))
    tokens, time_ns = rows * lengths, np.array([own_ns[step] for step in steps], dtype=np.float64)
    with_joules = [place for place, step in enumerate(steps) if step in joules]
    known_tokens = float(tokens[with_joules].sum())
    used_j = sum(joules[steps[place]] for place in with_joules)
    return CallKind(
        name=name,
        calls=len(steps),
        rows=float(rows.mean()),
        length=float(lengths.mean()),
        call_ns=float(np.median(time_ns)),
        tokens_per_s=float(tokens.sum() / time_ns.sum()) * 1e9 if time_ns.sum() else 0.0,
        token_energy_j=used_j / known_tokens if known_tokens else None,
    )
