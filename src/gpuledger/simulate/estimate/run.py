"""Estimate a command's memory: follow the program in a child process, build the run's tables, and read the peaks."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.posting.posting import post_ranks
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import InputError, UsageError
from gpuledger.files.scratch import block_directory
from gpuledger.model.journal.reading import Journal, read_journal
from gpuledger.model.run import Rank, Run, read_run
from gpuledger.model.run_writer import RunWriter, new_manifest
from gpuledger.model.simulated import SIMULATED
from gpuledger.processes.child_job import ChildJobError, run_program_job
from gpuledger.simulate.assumptions import EXPECTED, LARGEST, LEAST, describe_assumed
from gpuledger.simulate.catalogue import HANDLES, GpuModel, catalogue, find_card
from gpuledger.simulate.estimate.failures import CRASHED_HINT, refuse_failure, reserved_with_both, steps_again
from gpuledger.simulate.estimate.fit import (
    NO_CHANGE,
    Assumed,
    CompiledChange,
    EndlessGrowth,
    Fit,
    Peaks,
    Requests,
    assumed_between,
    at_the_edge,
    compiled_change,
    fit_card,
    fit_catalogue,
    kind_of,
    later_steps_bytes,
    peaks_on,
    with_full_buffers,
    with_handled_errors,
)
from gpuledger.simulate.estimate.steps.later_steps import describe_batches, describe_later, grown_bytes_of
from gpuledger.simulate.interval import compiled_errors
from gpuledger.units import format_bytes

DEFAULT_STEPS = 3
DEFAULT_CONFIDENCE, LOWEST_CONFIDENCE, HIGHEST_CONFIDENCE = 0.95, 0.5, 0.999
_WITH_GRAPHS = {"reduce-overhead", "max-autotune"}  # modes of torch.compile that use CUDA graphs


@dataclass(frozen=True)
class Estimate:
    """Estimated memory of a program on a GPU. ``run`` is an ordinary run; ``notes`` list approximations."""

    card: GpuModel
    peaks: Peaks
    fit: Fit
    others: tuple[Fit, ...]
    steps: int
    confidence: float
    notes: tuple[str, ...]
    run: Run
    uncompiled: tuple[str, ...] = ()
    """Places in the program that use ``torch.compile``, as FILE:LINE. Nothing is compiled for the estimate."""
    rank: int = 0
    memory_errors: int = 0
    """Out-of-memory errors that the program meets on this GPU and handles."""

    def __repr__(self) -> str:
        sizes = [format_bytes(size) for size in (self.peak_process_bytes, self.upper_bytes, self.card.usable_bytes)]
        return f"<Estimate: {self.fit.verdict} on {self.card.name}, {sizes[0]}, at most {sizes[1]}, of {sizes[2]}>"

    @property
    def fits(self) -> bool:
        """Return whether the upper bound fits the GPU."""
        return self.fit.verdict == "fits"

    @property
    def peak_step(self) -> int:
        """Return the step with the highest allocated bytes; 0 before the first one, ``steps`` + 1 after the last."""
        return find_peak(self.run.rank(self.rank)).step

    @property
    def peak_allocated_bytes(self) -> int:
        """Return the peak of allocated bytes."""
        return self.peaks.allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Return the peak of reserved bytes."""
        return self.peaks.reserved_bytes

    @property
    def peak_process_bytes(self) -> int:
        """Return the peak of the process's bytes on the GPU: reserved, context and libraries."""
        return self.peaks.process_bytes

    @property
    def lower_bytes(self) -> int:
        """Return the lower bound of ``peak_process_bytes``."""
        return self.peaks.lower_bytes

    @property
    def upper_bytes(self) -> int:
        """Return the upper bound of ``peak_process_bytes``."""
        return self.peaks.upper_bytes


@dataclass(frozen=True)
class Order:
    """What to estimate: a program with its arguments, the GPU, and the number of steps."""

    program: tuple[str, ...]
    card: GpuModel
    steps: int | None = DEFAULT_STEPS
    """None for as many as the program's inputs require."""
    confidence: float = DEFAULT_CONFIDENCE
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    others: tuple[GpuModel, ...] | None = None
    """Other GPUs for which the program is evaluated; None for all of the catalogue."""


def make_order(
    caller: str, program: tuple[str, ...], gpu: str, steps: int | None, confidence: float, alloc_conf: str
) -> Order:
    """Return what a function of the Python API is asked to estimate. ``caller`` is its name in errors.

    Raises:
        UsageError: no such GPU or setting, or ``steps`` or ``confidence`` is outside its range.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"{caller}(steps={steps}): steps must be 1 or more")
    if not LOWEST_CONFIDENCE <= confidence <= HIGHEST_CONFIDENCE:
        allowed = f"{LOWEST_CONFIDENCE} to {HIGHEST_CONFIDENCE}"
        raise UsageError(f"{caller}(confidence={confidence}): expected {allowed}", hint="For example 0.95")
    return Order(program, find_card(gpu), steps, confidence, parse_alloc_conf(alloc_conf))


Follower = Callable[[Order, Path, TextIO | None, str], dict[str, Any]]
"""Follows a program for an order, a run's directory, a stream and an assumption, and returns how it ended."""


def estimate_program(
    order: Order,
    run_directory: Path,
    output: TextIO | None = None,
    *,
    replace: bool = False,
    follower: Follower | None = None,
) -> Estimate:
    """Return a program's estimate, after following its first steps in a child process.

    Args:
        order: The program and the GPU.
        run_directory: Directory of the run. If there is no estimate, it is removed.
        output: Stream for the program's own output; None discards it.
        replace: Whether an existing run is replaced once there is an estimate.
        follower: Follows the program instead of a new child process.

    Raises:
        FileExistsError: ``run_directory`` exists, and ``replace`` is False.
        ChildJobError: the child process crashed with the program.
        InputError: the program raised, ran no step, or uses something that cannot be simulated.
        UsageError: there is no program.
    """
    check_program(order.program)
    manifest = new_manifest(run_directory.name, (sys.executable, *order.program), {})
    writer = RunWriter.open(run_directory, manifest, replace=replace)
    with writer.placing():
        follower = follower or follow_in_child
        outcome = follower(order, writer.directory, output, EXPECTED)
        refuse_failure(order.program, outcome)
        assumed = _follow_assumed(order, outcome, follower) if outcome["assumed"] else None
        grown_bytes = grown_bytes_of(outcome, writer.directory)
        later_bytes = later_steps_bytes(grown_bytes)
        notes = (*outcome["notes"], *_describe(outcome, assumed, grown_bytes, later_bytes))
        found = finish(order, writer, notes, with_full_buffers(assumed, outcome, later_bytes))
    return dataclasses.replace(found, run=read_run(run_directory))


def finish(order: Order, writer: RunWriter, notes: tuple[str, ...], assumed: Assumed | None = None) -> Estimate:
    """Return the estimate from a followed program's journal. Closes the run and builds its tables."""
    journal = read_journal(writer.directory / "rank-0" / "journal")
    own_notes = notes_on_uncompiled(journal)
    close_run(order, writer, own_notes)
    return read_estimate(order, read_run(writer.directory), journal, (*own_notes, *notes), assumed=assumed)


def close_run(order: Order, writer: RunWriter, notes: tuple[str, ...]) -> None:
    """Close the run of an estimate, and build its tables."""
    writer.close((f"Estimated for {order.card.name}{SIMULATED}: nothing ran on a GPU.", *notes), post=post_ranks)


def read_estimate(
    order: Order, run: Run, journal: Journal, notes: tuple[str, ...], *, assumed: Assumed | None = None, rank: int = 0
) -> Estimate:
    """Return the estimate of one rank from its journal and the run's tables."""
    uncompiled, counters = journal.facts.get("uncompiled", {}), journal.tables["counters"]
    handles = int(journal.facts.get("cublas_handles", HANDLES))
    limit_frac = float(journal.facts.get("limit_frac", 1.0))
    card = order.card.with_handles(handles).with_limit(limit_frac)
    peaks = peaks_on(
        card,
        int(counters["peak_allocated_bytes"].max()),
        int(counters["peak_reserved_bytes"].max()),
        order.confidence,
        kind_of(journal.facts.get("operators", ())),
        assumed,
        _compiled_change(run.rank(rank)) if uncompiled else NO_CHANGE,
    )
    requests = Requests(journal, order.settings)
    steps = int(journal.facts.get("steps_seen", 0))
    endless = EndlessGrowth(steps, int(journal.facts.get("endless_bytes_per_step", 0)))
    peaks = dataclasses.replace(peaks, endless=endless)
    fit = fit_card(card, peaks, requests, order.confidence)
    listed = catalogue().values() if order.others is None else order.others
    cards = [one.with_limit(limit_frac) for one in listed]
    others = fit_catalogue(peaks, requests, order.confidence, handles, card.nccl_bytes, cards=cards)
    memory_errors = int(journal.facts.get("memory_errors", 0))
    if memory_errors:
        fit = with_handled_errors(fit)
        others = tuple(with_handled_errors(one) if one.card.key == card.key else at_the_edge(one) for one in others)
        peaks = dataclasses.replace(peaks, upper_bytes=fit.upper_bytes)
    if fit.process_bytes < peaks.process_bytes:
        peaks = dataclasses.replace(
            peaks, process_bytes=fit.process_bytes, reserved_bytes=fit.process_bytes - card.outside_bytes
        )
    return Estimate(
        card,
        peaks,
        fit,
        others,
        steps,
        order.confidence,
        (*notes, *_describe_approximate(others)),
        run,
        tuple(uncompiled),
        rank,
        memory_errors,
    )


def some_of(places: Sequence[str], most: int = 3) -> str:
    """Return the first places, and the number of the others."""
    more = [f"{len(places) - most} more"] if len(places) > most else []
    return ", ".join([*places[:most], *more])


def _compiled_change(rank: Rank) -> CompiledChange:
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    return compiled_change({account.category: account.bytes for account in accounts})


def notes_on_uncompiled(journal: Journal) -> tuple[str, ...]:
    """Return what is not simulated of a program that uses ``torch.compile``."""
    return tuple(_notes_on_uses(journal.facts.get("uncompiled", {})))


def note_on_uncompiled(uncompiled: Mapping[str, str]) -> str:
    """Return where a program uses ``torch.compile``, and what that means for the estimate."""
    return f"The memory of compiled code is approximated ({some_of(tuple(uncompiled))}). Nothing is compiled."


def _notes_on_uses(uncompiled: Mapping[str, str]) -> Iterator[str]:
    if not uncompiled:
        return
    yield note_on_uncompiled(uncompiled)
    errors = compiled_errors()
    name = max(errors, key=lambda one: abs(errors[one]))
    yield (
        f"The bounds include the largest error of estimates of {len(errors)} compiled trainings: in {name}, "
        f"activations and temporary memory were {100 * abs(errors[name]):.0f} % "
        f"{'higher' if errors[name] < 0 else 'lower'} on an H200."
    )
    modes = sorted({mode for mode in uncompiled.values() if mode in _WITH_GRAPHS})
    if modes:
        yield f"Memory of CUDA graphs is not included (mode {', '.join(modes)})."


def _describe_approximate(others: tuple[Fit, ...]) -> Iterator[str]:
    """Yield a note on the GPUs with approximate results."""
    names = [fit.card.key for fit in others if fit.approximate]
    if names:
        yield (
            f"Approximate results: on {', '.join(names)}, attention may use another kernel, or the script asks for the "
            "GPU's properties. Estimate for one of these GPUs with --gpu NAME."
        )


def _describe(outcome: dict[str, Any], assumed: Assumed | None, grown_bytes: int, later_bytes: int) -> Iterator[str]:
    """Yield notes on steps that differ or are missing, and on the memory with other values than the assumed ones."""
    if not outcome["steps"]:
        made = [f" The optimizer of {place} took no step." for place in outcome.get("optimizers", ())]
        yield f"No training step was seen, so the estimate is of the whole program.{''.join(made)}"
    if outcome["varied"]:
        which, more = describe_batches(outcome), describe_later(outcome, grown_bytes, later_bytes)
        yield f"The steps need different amounts of memory. {outcome['steps']} steps were simulated{which}.{more}"
    if assumed is not None:
        sizes = (assumed.least_reserved_bytes, assumed.largest_reserved_bytes)
        least, largest = ("unknown" if size is None else format_bytes(size) for size in sizes)
        expected, others = describe_assumed(outcome["assumed_kinds"])
        sizes_text = f"Reserved memory with {others}: {least} to {largest}."
        yield f"Values that are not computed were assumed: {expected}. {sizes_text}"


def _follow_assumed(order: Order, outcome: dict[str, Any], follower: Follower) -> Assumed:
    """Return the reserved bytes if the values that were assumed are the least and the largest possible.

    A program that fails with these values has no such bound. A child process has followed it already.
    """
    again = dataclasses.replace(order, steps=steps_again(outcome, order.steps))

    def follow_with(assumption: str) -> dict[str, Any]:
        with block_directory() as directory:
            return follower(again, directory / "other.ledger", None, assumption)

    reserved = outcome["reserved_if"] if "reserved_if" in outcome else reserved_with_both(follow_with)
    return assumed_between(reserved[LEAST], reserved[LARGEST])


def check_program(program: Sequence[str]) -> None:
    """Check that there is a program.

    Raises:
        UsageError: there is no such script.
    """
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise UsageError(
            f"{program[0]}: no such script", hint="Name a Python script, or use -m MODULE: gpuledger estimate train.py"
        )


def describe_order(order: Order, run_directory: Path, assumption: str) -> dict[str, Any]:
    """Return what :func:`gpuledger.simulate.estimate.follow.follow` is asked to follow, as plain values."""
    return {
        "card": order.card.key,
        "steps": order.steps,
        "settings": asdict(order.settings),
        "run_directory": str(run_directory.absolute()),
        "assumption": assumption,
    }


def follow_in_child(
    order: Order,
    run_directory: Path,
    output: TextIO | None,
    assumption: str = EXPECTED,
    ranks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return how a program ended in a child process. ``ranks`` are the rank, the number of ranks, and messages.

    Raises:
        ChildJobError: the process ended early.
        InputError: it ended with a signal in a line of the program.
    """
    given = {**describe_order(order, run_directory, assumption), "ranks": ranks}
    try:
        return run_program_job("gpuledger.simulate.estimate.child", given, order.program, output)
    except ChildJobError as error:
        if not error.place:
            raise
        raise InputError(error.message, hint=CRASHED_HINT) from error
