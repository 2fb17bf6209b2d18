"""Samples and tokens per step, per second and per unit of energy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.generations import checks_proposals, is_generation, keeps_growing
from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.step.energy import step_energy
from gpuledger.analyze.step.gpu_steps import gpu_steps
from gpuledger.analyze.step.steps import REPLAY, step_times, unprofiled_steps

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

PREFILL, DECODE = "prefill", "decode"

SAME_FRAC = 0.9
"""Minimum share of steps with the same batch size for samples per second."""


@dataclass(frozen=True)
class CallKind:
    """Calls of a generation loop: ``prefill`` has several tokens per row, ``decode`` has one.

    The first call of each kind is left out, because it warms up. ``tokens_per_s`` is of all rows: beams and samples of
    one prompt have rows of their own, and nothing shows which rows the program returns.

    ``token_energy_j`` divides the measured energy by time; None if the energy measurement contains none of these calls.
    """

    name: str
    calls: int
    rows: float
    length: float
    call_ns: float
    tokens_per_s: float
    token_energy_j: float | None

    @property
    def row_tokens_per_s(self) -> float:
        """Return the tokens per second of one row, which is the rate of one returned text, with beams or without."""
        return self.tokens_per_s / self.rows


@dataclass(frozen=True)
class Rates:
    """Samples per step, per second and per unit of energy; None if unknown, or if batches of a step differ.

    ``source`` describes where the batch size comes from. ``step_samples`` is None if a step has several batches, or if
    their sizes differ. ``kinds`` is empty except for generation loops.
    """

    batch: int
    step_samples: int | None
    source: str
    samples_per_s: float | None
    sample_energy_j: float | None
    kinds: tuple[CallKind, ...]


def find_rates(rank: Rank, device_idx: int | None = None) -> Rates | None:
    """Return samples and tokens of one process; None if no module was called with a tensor.

    Source: the first dimension of the first tensor argument of the outermost module; the median unprofiled step, unless
    the program does other work in many steps; the energy measurement.
    """
    inputs = rank.manifest.inputs
    if inputs is None:
        return None
    shape, times, energy = inputs.shape, step_times(rank), step_energy(rank, device_idx)
    step = None if times.has_other_work else times.median_ns
    batch = inputs.batch
    path = module_paths(rank).get(inputs.module_id, "") or "the outermost module"
    kinds = _call_kinds(rank, device_idx)
    is_of_text = keeps_growing(rank.manifest.calls) or (inputs.tokens and checks_proposals(rank.manifest.calls))
    is_of_steps = _has_one_batch(rank) and _is_called_in_steps(rank) and _knows_replays(rank)
    is_known = bool(batch) and not kinds and not is_of_text and is_of_steps
    samples = (inputs.step_samples or batch) if is_known else None
    return Rates(
        batch=batch,
        step_samples=samples,
        source=f"input of {path}, {' × '.join(map(str, shape))}",
        samples_per_s=samples / step * 1e9 if step and samples else None,
        sample_energy_j=energy.energy_j / samples if energy is not None and energy.is_usual and samples else None,
        kinds=kinds,
    )


def _has_one_batch(rank: Rank) -> bool:
    """Return whether a step processes one batch of the known size, or accumulates the gradients of several.

    Several calls in a step can also be one batch that is processed repeatedly. Steps that ran out of memory are left
    out: the program can have tried a larger batch.
    """
    inputs, steps = rank.manifest.inputs, Counter[int]()
    failed = {one.step for one in rank.manifest.oom if one.step is not None}
    if inputs is None or (inputs.step_calls not in (None, 1) and inputs.step_samples is None):
        return False
    for first, last, rows, _ in rank.manifest.calls:
        steps[rows] += last - first + 1 - sum(first <= step <= last for step in failed)
    return not steps or steps[inputs.batch] >= SAME_FRAC * steps.total()


def _is_called_in_steps(rank: Rank) -> bool:
    """Return whether most of the recorded steps called the module of which the input is known.

    A program can call parts of a model in each step, and an encoder once for many of them.
    """
    window, calls = rank.manifest.window, rank.manifest.calls
    if not calls or window is None or window.first_step is None or window.last_step is None:
        return True
    steps = range(window.first_step, window.last_step + 1)
    called = {step for step in steps if any(first <= step <= last for first, last, _, _ in calls)}
    return 2 * len(called) > len(steps)


def _knows_replays(rank: Rank) -> bool:
    """Return whether it is known which of the calls a replay of a CUDA graph repeats: there are none, or all are equal.

    A replay has no arguments. Its input has the shape that the captured call had.
    """
    kinds = rank.table("steps", ("kind",)).column("kind").to_pylist()
    return REPLAY not in kinds or len({tuple(sizes) for _, _, *sizes in rank.manifest.calls}) <= 1


def _call_kinds(rank: Rank, device_idx: int | None) -> tuple[CallKind, ...]:
    """Return the kinds of calls of a generation loop; empty if there are no warm calls of it with known times."""
    inputs, calls = rank.manifest.inputs, rank.manifest.calls
    own_ns = unprofiled_steps(rank, kind="call")
    if not own_ns or inputs is None or not inputs.tokens or not is_generation(calls):
        return ()
    on_gpu = gpu_steps(rank, device_idx)
    if on_gpu is not None and on_gpu.runs_ahead:
        return ()  # the host's clock does not separate calls
    cold = {min(first for first, _, _, length in calls if _kind_of(length) == name) for name in _kinds_in(calls)}
    shapes = {step: shape for step, shape in _shapes_of(calls, own_ns).items() if step not in cold}
    joules = _joules_of(rank, device_idx, own_ns)
    named = {step: _kind_of(length) for step, (_, length) in shapes.items()}
    return tuple(
        _kind(name, [step for step in named if named[step] == name], shapes, own_ns, joules)
        for name in (PREFILL, DECODE)
        if name in named.values()
    )


def _kind_of(length: int) -> str:
    return DECODE if length == 1 else PREFILL


def _kinds_in(calls: Sequence[Sequence[int]]) -> set[str]:
    return {_kind_of(length) for *_, length in calls}


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
