"""Why an allocation failed: one sentence, from the first rule that applies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.trends import FEWEST_STEPS
from gpuledger.units import format_bytes, format_frac

if TYPE_CHECKING:
    from gpuledger.analyze.memory.failures.failed_request import FailedState
    from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
    from gpuledger.analyze.memory.growth import Growth
    from gpuledger.analyze.memory.lines.loop_growth import LoopGrowth
    from gpuledger.model.flight_facts import FailedAllocation, Holder
    from gpuledger.model.manifest import OptimizerFacts

_CONTEXT_BYTES = 1 << 30
"""Upper bound of CUDA's context and libraries in one process."""
_MUCH_FRAC = 0.1
"""Share of the GPU from which on other processes are named."""
_LARGE_FRAC = 0.5
"""Share of the limit from which on a single request is the cause by itself."""
_MANY_TIMES = 10
"""Size of a request relative to the limit, from which on it is not shown as a percentage."""
_PART_FRAC, _MOST_FRAC = 0.2, 0.5
"""Share of the allocated memory from which on growth is the cause: over many steps, and over few."""
_SMALL_FRAC, _PIECES_FRAC = 0.01, 0.05
"""Share of the reserved memory below which a request is small, and the share that must then be free in pieces.

A small request also fails where memory is full, because some is always free in pieces.
"""
_ULIMIT = " (ulimit -v)"
_LARGER_STEP = 1.25
"""Ratio to the median peak of earlier steps from which on a step is larger than these."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at. ``capacity_bytes`` is the GPU's, ``usual_inputs`` the shape in the recorded steps.

    ``other_bytes`` are those of other processes, None if they were not read. ``usual_peak_bytes`` is the median peak of
    earlier steps. ``replay`` replays the last requests, None if they are not to be replayed. ``optimizers`` are the
    program's, None if the run does not say. ``number_bytes`` are those of most numbers of the model. ``gpus`` are name
    and bytes of others that the program could use.
    """

    failure: FailedAllocation
    state: FailedState
    capacity_bytes: int | None
    other_bytes: int | None
    growth: Growth | None
    usual_inputs: tuple[int, ...]
    usual_peak_bytes: int | None
    replay: FailureReplay | None = None
    optimizers: tuple[OptimizerFacts, ...] | None = None
    number_bytes: int = 4
    gpus: tuple[tuple[str, int], ...] = ()
    has_batch: bool = True
    """Whether the inputs of modules have the dimension of a batch, as far as known."""
    loop: LoopGrowth | None = None
    """What iterations of a loop in a recorded step keep."""

    @property
    def tried_bytes(self) -> int:
        """Return the bytes of the request."""
        return self.failure.tried_bytes or 0

    @property
    def limit_bytes(self) -> int | None:
        """Return the bytes that the process may reserve, by its own setting or the GPU's size."""
        known = [one for one in (self.own_limit_bytes, self.failure.total_bytes, self.capacity_bytes) if one]
        return min(known) if known else None

    @property
    def own_limit_bytes(self) -> int | None:
        """Return the bytes to which the program limits itself; None if it may use the whole GPU."""
        return self.failure.own_limit_bytes(self.capacity_bytes)


@dataclass(frozen=True)
class Cause:
    """``kind`` is a word for scripts, ``sentence`` the same for people."""

    kind: str
    sentence: str


def is_grown(evidence: Evidence) -> bool:
    """Return whether growth is a large part of the memory, so that it is the cause."""
    return bool(_growth(evidence))


def holder_text(holder: Holder) -> str:
    """Return what grows and its name: ``list outputs``, ``the autograd graph of total``."""
    return f"{'the autograd graph of' if holder.kind == 'graph' else holder.kind} {holder.shown_name}"


def find_cause(evidence: Evidence) -> Cause:
    """Return why the request failed."""
    for rule in RULES:
        sentence = rule(evidence)
        if sentence:
            limit = _limited(evidence) if rule in _ABOVE_A_LIMIT else ""
            kind = _growth if rule is _kept_by_iterations else rule
            return Cause(kind.__name__.strip("_"), f"{sentence}. {limit}" if limit else sentence)
    return Cause("full", _full(evidence))


def _host_killed(of: Evidence) -> str:
    failure, killed = of.failure, of.failure.killed
    if killed is None:
        return ""
    limit = "" if failure.total_bytes is None else f" of {format_bytes(failure.total_bytes)}"
    if killed.at_limit:
        why = f"host memory reached the limit{limit} of its job or container (cgroup)"
    else:
        why = "the machine's memory was full"
    others = "a process" if killed.processes == 1 else f"{killed.processes:,} processes"
    ended = "the program" if killed.of_program else f"{others} beside the program"
    used = failure.allocated_bytes
    known = "" if used is None else f"The process used {format_bytes(used)} when this was last measured"
    then = _growth(of) or known
    return f"The kernel ended {ended}, because {why}" + (f". {then}" if then else "")


def _host(of: Evidence) -> str:
    failure = of.failure
    if (failure.device_idx or 0) >= 0:
        return ""
    grown = _growth(of)
    if grown:
        limit = "" if failure.total_bytes is None else f". The process may use {format_bytes(failure.total_bytes)}"
        if failure.mapped_bytes is not None:
            limit += f" of address space{_ULIMIT}"
        return f"The host ran out of memory. {grown}{limit}"
    parts = []
    if failure.mapped_bytes is not None and failure.total_bytes is not None:
        total = f"the {format_bytes(failure.total_bytes)} of address space that it may use{_ULIMIT}"
        parts.append(f"the process uses {format_bytes(failure.mapped_bytes)} of {total}")
    elif failure.allocated_bytes is not None:
        total = "" if failure.total_bytes is None else f" of the {format_bytes(failure.total_bytes)} that it may use"
        parts.append(f"the process uses {format_bytes(failure.allocated_bytes)}{total}")
    if failure.free_bytes is not None:
        parts.append(f"{format_bytes(failure.free_bytes)} are available on the machine")
    what = "host memory" if failure.tried_bytes is None else f"{format_bytes(failure.tried_bytes)} of host memory"
    return f"{failure.library} could not allocate {what}" + (f": {'; '.join(parts)}" if parts else "")


def _library(of: Evidence) -> str:
    library = of.failure.library
    if not library:
        return ""
    state, free_bytes, other = of.state, of.failure.free_bytes, _other_bytes(of)
    parts = [] if free_bytes is None else [f"{format_bytes(free_bytes)} were free after the error"]
    if state.reserved_bytes:
        unused = format_bytes(state.reserved_bytes - state.allocated_bytes)
        parts.append(f"PyTorch reserves {format_bytes(state.reserved_bytes)}, of which {unused} are free")
    if other and other >= _MUCH_FRAC * (of.capacity_bytes or 0):
        parts.append(f"other processes use {format_bytes(other)}")
    failed = f"{library[0].upper()}{library[1:]}" if library.startswith("a ") else library
    return f"{failed} could not allocate GPU memory" + (f": {'; '.join(parts)}" if parts else "")


def _one_large_request(of: Evidence) -> str:
    limit = of.limit_bytes
    if not limit or of.tried_bytes < _LARGE_FRAC * limit:
        return ""
    tried, ratio = format_bytes(of.tried_bytes), of.tried_bytes / limit
    share = f"{ratio:,.0f} times" if ratio >= _MANY_TIMES else f"{format_frac(ratio, 0)} of"
    return f"One request of {tried} is {share} the {format_bytes(limit)} that the process may use"


def _memory_fraction(of: Evidence) -> str:
    limit = _limited(of)
    step = _larger_step(of) if limit else ""
    return f"{limit}. {step}" if step else limit


def _limited(of: Evidence) -> str:
    """Return that the process has a limit of its own, with enough memory above it for the request; "" otherwise."""
    limit, free = of.own_limit_bytes, of.failure.free_bytes
    if limit is None or free is None or free < of.tried_bytes:
        return ""
    return (
        f"The process may use only {format_bytes(limit)} of the GPU (set_per_process_memory_fraction), although "
        f"{format_bytes(free)} are free"
    )


def _private_pool(of: Evidence) -> str:
    private, free = of.state.free.private_pool_bytes, of.state.free
    held = private + of.state.private_bytes
    if private < of.tried_bytes and not (of.failure.is_capturing and held > free.in_pieces_bytes):
        return ""
    sizes = f"{format_bytes(private)} of {format_bytes(held)}"
    return f"{sizes} in private pools of CUDA graphs or MemPools are free, but this request cannot use them"


def _other_bytes(of: Evidence) -> int | None:
    """Return the bytes of other processes; without the driver's answer, at least these, from what is not free."""
    capacity, free = of.capacity_bytes, of.failure.free_bytes
    if of.other_bytes is not None or not capacity or free is None:
        return of.other_bytes
    return capacity - free - of.state.reserved_bytes - _CONTEXT_BYTES


def _other_processes(of: Evidence) -> str:
    other = _other_bytes(of)
    if other is None or _limited(of) or other < max(of.tried_bytes, _MUCH_FRAC * (of.capacity_bytes or 0)):
        return ""
    return (
        f"Other processes use {format_bytes(other)} of the GPU, more than the request of {format_bytes(of.tried_bytes)}"
    )


def _growth(of: Evidence) -> str:
    growth = of.growth
    if growth is None:
        return ""
    is_short = growth.last_step - growth.since_step < FEWEST_STEPS
    least_frac = _MOST_FRAC if is_short else _PART_FRAC
    if growth.grown_bytes < max(of.tried_bytes, least_frac * of.state.allocated_bytes):
        return ""
    held = "" if growth.holder is None else f", held by {holder_text(growth.holder)}"
    return (
        f"Memory has grown by {format_bytes(round(growth.step_bytes))} per step since step {growth.since_step}, "
        f"{format_bytes(growth.grown_bytes)} in total{held}"
    )


def _fragmentation(of: Evidence) -> str:
    free = of.state.free
    is_small = of.tried_bytes < _SMALL_FRAC * of.state.reserved_bytes
    least_bytes = max(of.tried_bytes, _PIECES_FRAC * of.state.reserved_bytes if is_small else 0)
    if free.in_pieces_bytes < least_bytes or free.largest_piece_bytes >= of.tried_bytes:
        return ""
    return (
        f"{format_bytes(free.in_pieces_bytes)} are free, but in {free.pieces + free.tails:,} pieces of at most "
        f"{format_bytes(free.largest_piece_bytes)}: the memory is fragmented"
    )


def _optimizer_state(of: Evidence) -> str:
    if not of.failure.in_optimizer or (of.failure.step or 0) > 1:
        return ""
    used = format_bytes(of.state.allocated_bytes)
    return f"The first optimizer step allocates the optimizer's state, and {used} are in use already"


def _evaluation(of: Evidence) -> str:
    if of.failure.is_training is not False or not of.failure.grad_enabled:
        return ""
    return "The model is in evaluation mode, but gradients are enabled, so activations are kept: use torch.no_grad()"


def _kept_by_iterations(of: Evidence) -> str:
    """Return what a loop keeps, such as that of a server: its step never ends, so steps show no growth."""
    loop = of.loop
    if loop is None:
        return ""
    least_frac = _MOST_FRAC if loop.iterations < FEWEST_STEPS else _PART_FRAC
    if loop.grown_bytes < max(of.tried_bytes, least_frac * of.state.allocated_bytes):
        return ""
    kept = f", allocated at {loop.kept_line}" if loop.kept_line else ""
    each, many = (
        (f"iteration of the loop at {loop.line}", "iterations") if loop.line else ("call of the model", "calls")
    )
    return (
        f"Memory has grown by {format_bytes(loop.iteration_bytes)} per {each}, {format_bytes(loop.grown_bytes)} in "
        f"{loop.iterations:,} {many}{kept}"
    )


def _larger_inputs(of: Evidence) -> str:
    inputs = of.failure.inputs[0] if of.failure.inputs else ()
    usual = of.usual_inputs
    if not inputs or len(inputs) != len(usual) or _count(inputs) < 1.25 * _count(usual):
        return ""
    more = of.state.allocated_bytes + of.tried_bytes - (of.usual_peak_bytes or 0)
    above = f", {format_bytes(more)} above the median peak of a step" if of.usual_peak_bytes and more > 0 else ""
    return f"The input of step {of.failure.step} is {_shape(inputs)}, usually {_shape(usual)}{above}"


def _larger_step(of: Evidence) -> str:
    """Return how much more the step needs than earlier ones, if its inputs are not known, as in a backward pass."""
    needed_bytes, usual_bytes = of.state.allocated_bytes + of.tried_bytes, of.usual_peak_bytes
    if not usual_bytes or needed_bytes < _LARGER_STEP * usual_bytes:
        return ""
    usual = f"the median peak of earlier steps is {format_bytes(usual_bytes)}"
    return f"Step {of.failure.step} needs {format_bytes(needed_bytes)}, and {usual}: {_largest(of)}"


def _full(of: Evidence) -> str:
    return f"The GPU is full: {_largest(of)}"


def _largest(of: Evidence) -> str:
    largest = [f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in list(of.state.categories.items())[:3]]
    return ", ".join(largest) or format_bytes(of.state.allocated_bytes)


RULES: tuple[Callable[[Evidence], str], ...] = (
    *(_host_killed, _host, _library, _one_large_request, _other_processes, _private_pool, _growth, _fragmentation),
    *(_optimizer_state, _evaluation, _kept_by_iterations, _larger_inputs, _memory_fraction, _larger_step),
)
"""The rules in their order. Each returns a sentence, or "" if it does not apply."""
_ABOVE_A_LIMIT = (_growth, _optimizer_state, _evaluation, _kept_by_iterations, _larger_inputs)
"""Rules of what would not have failed here without a limit of the process's own. The sentence also names the limit."""


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= max(size, 1)
    return product


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape)
