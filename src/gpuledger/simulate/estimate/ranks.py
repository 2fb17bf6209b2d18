"""Estimates of sharded training: a program is followed as one rank after another, each in a child process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.scratch import block_directory
from gpuledger.model.journal.reading import read_journal
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_writer import RunWriter, new_manifest
from gpuledger.simulate.assumptions import describe_assumed
from gpuledger.simulate.estimate.failures import refuse_failure
from gpuledger.simulate.estimate.fit import EDGE, FITS, TOO_LARGE
from gpuledger.simulate.estimate.run import (
    Estimate,
    Order,
    check_program,
    close_run,
    follow_in_child,
    notes_on_uncompiled,
    read_estimate,
)
from gpuledger.simulate.ranks.messages import mark_ended, wanted_ranks
from gpuledger.units import counted, format_bytes

MOST_RANKS = 65_536
"""Limit of ``--world-size``."""
MOST_NAMED = 64
"""Limit of ``--ranks``: the ranks may wait for each other, so their processes run at the same time."""
_WORST_FIRST = (TOO_LARGE, EDGE, FITS)
_POLL_S = 0.2

Outcomes = dict[int, dict[str, Any]]
"""Rank -> how the program ended as that rank."""


@dataclass(frozen=True)
class RankEstimate:
    """Estimated memory of one rank.

    ``coordinate`` is its place in the program's device mesh, by dimension. ``nccl_bytes`` is the memory of NCCL for its
    ``communicators``.
    """

    rank: int
    coordinate: dict[str, int]
    estimate: Estimate
    nccl_bytes: int
    communicators: int


@dataclass(frozen=True)
class RanksEstimate:
    """Estimated memory of the simulated ranks of a job. ``notes`` list assumptions and approximations."""

    world_size: int
    ranks: tuple[RankEstimate, ...]
    notes: tuple[str, ...]
    run: Run

    def __repr__(self) -> str:
        size = format_bytes(self.highest.estimate.peak_process_bytes)
        where = f"rank {self.highest.rank} of {self.world_size}"
        return f"<RanksEstimate: {self.verdict} on {self.highest.estimate.card.name}, {size} on {where}>"

    @property
    def highest(self) -> RankEstimate:
        """Return the simulated rank with the highest peak of the process."""
        return max(self.ranks, key=lambda one: one.estimate.peak_process_bytes)

    @property
    def nccl_bytes(self) -> int:
        """Return the memory of NCCL on the rank with the highest peak."""
        return self.highest.nccl_bytes

    @property
    def verdict(self) -> str:
        """Return the worst verdict of the simulated ranks."""
        return min((one.estimate.fit.verdict for one in self.ranks), key=_WORST_FIRST.index)

    @property
    def fits(self) -> bool:
        """Return whether the upper bound of every simulated rank fits its GPU."""
        return self.verdict == FITS


def estimate_program_ranks(
    order: Order,
    world_size: int,
    run_directory: Path,
    output: TextIO | None = None,
    *,
    ranks: Sequence[int] = (),
    replace: bool = False,
) -> RanksEstimate:
    """Return a sharded program's estimate by rank, after following its first steps as some of its ranks.

    Args:
        order: The program and the GPU.
        world_size: Number of ranks, one GPU each.
        run_directory: Directory of the run. If there is no estimate, it is removed.
        output: Stream for the output of the first rank; None discards it.
        ranks: Ranks to simulate. By default rank 0, all ranks of which it needs objects, and the last rank if there are
            none.
        replace: Whether an existing run is replaced once there is an estimate.

    Raises:
        ChildJobError: a child process crashed with the program.
        InputError: the program failed, initialized no process group, or uses something that cannot be simulated.
        UsageError: there is no program or no such rank, or ``run_directory`` exists or cannot be created.
    """
    check_program(order.program)
    check_ranks(world_size, ranks)
    manifest = new_manifest(run_directory.name, ("torchrun", f"--nproc-per-node={world_size}", *order.program), {})
    try:
        writer = RunWriter.open(run_directory, manifest, replace=replace)
    except OSError as error:
        raise UsageError(
            f"{run_directory}: cannot be created: {error.strerror}", hint="Choose another directory for the run"
        ) from error
    with writer.placing():
        outcomes = _follow_ranks(order, world_size, writer.directory, output, ranks)
        _refuse(order, world_size, outcomes)
        found = _finish(order, world_size, writer, outcomes)
    run = read_run(run_directory)
    moved = [dataclasses.replace(one, estimate=dataclasses.replace(one.estimate, run=run)) for one in found.ranks]
    return dataclasses.replace(found, ranks=tuple(moved), run=run)


def check_ranks(world_size: int, ranks: Sequence[int] = ()) -> None:
    """Refuse an impossible number of ranks, and ranks that do not exist.

    Raises:
        UsageError: the number of ranks, or one of the ranks, is outside its range.
    """
    if not 1 <= world_size <= MOST_RANKS:
        raise UsageError(f"world size {world_size}: expected 1 to {MOST_RANKS:,} ranks", hint="For example 8")
    if len(ranks) > MOST_NAMED:
        raise UsageError(f"{len(ranks)} ranks to simulate: expected at most {MOST_NAMED}", hint="For example 0 and 7")
    wrong = [rank for rank in ranks if not 0 <= rank < world_size]
    if wrong:
        raise UsageError(f"rank {wrong[0]}: there are ranks 0 to {world_size - 1}", hint="For example rank 0")


def _follow_ranks(
    order: Order, world_size: int, run_directory: Path, output: TextIO | None, ranks: Sequence[int]
) -> Outcomes:
    """Return how the program ended as each simulated rank. A rank is followed when another one needs its objects."""
    wanted = set(ranks) or {0}
    running: dict[Future[dict[str, Any]], int] = {}
    outcomes: Outcomes = {}

    with block_directory() as place, ThreadPoolExecutor(world_size) as pool:

        def begin(rank: int) -> None:
            given = {"rank": rank, "world_size": world_size, "messages": str(place)}
            stream = output if rank == min(wanted) else None
            running[pool.submit(follow_in_child, order, run_directory, stream, ranks=given)] = rank

        for rank in sorted(wanted):
            begin(rank)
        while running:
            done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                rank = running.pop(future)
                mark_ended(place, rank)
                outcomes[rank] = _outcome_of(future)
            failed = any(_failed(outcome) for outcome in outcomes.values())
            asked = {rank for rank in wanted_ranks(place) if 0 <= rank < world_size}
            if not (running or ranks or asked or failed):
                asked = {world_size - 1}
            for rank in sorted(asked - set(outcomes) - set(running.values())):
                if failed:
                    mark_ended(place, rank)
                else:
                    begin(rank)
    return dict(sorted(outcomes.items()))


def _outcome_of(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except GpuLedgerError as error:
        return {"ended": "crashed", "error": error}


def _failed(outcome: dict[str, Any]) -> bool:
    return outcome["ended"] not in ("steps", "exit")


def _refuse(order: Order, world_size: int, outcomes: Outcomes) -> None:
    """Raise the failure of a rank as an error: that of the rank that does not wait for another one, if any."""
    failures = sorted((bool(outcome.get("waits")), rank) for rank, outcome in outcomes.items() if _failed(outcome)) or [
        (False, rank) for rank in outcomes
    ]
    for _, rank in failures:
        outcome = outcomes[rank]
        if outcome["ended"] == "crashed":
            raise outcome["error"]
        if outcome["ended"] == "ranks":
            raise InputError(f"{outcome['message']} (rank {rank} of {world_size})", hint=outcome["hint"])
        try:
            refuse_failure(order.program, outcome)
        except InputError as error:
            raise InputError(f"{error.message} (rank {rank} of {world_size})", hint=error.hint or "") from error
        if not outcome["initialized"] and world_size > 1:
            name = order.program[1] if order.program[0] == "-m" else order.program[0]
            raise InputError(
                f"{name}: no process group was initialized, so nothing is divided among {world_size} ranks",
                hint="Call torch.distributed.init_process_group(), or estimate without --world-size",
            )


def _finish(order: Order, world_size: int, writer: RunWriter, outcomes: Outcomes) -> RanksEstimate:
    """Return the estimates of all simulated ranks. Closes the run and builds its tables."""
    journals = {rank: read_journal(writer.directory / f"rank-{rank}" / "journal") for rank in outcomes}
    own_notes = tuple(dict.fromkeys(note for one in journals.values() for note in notes_on_uncompiled(one)))
    close_run(order, writer, own_notes)
    run = read_run(writer.directory)
    found = []
    for rank, journal in journals.items():
        mesh = run.rank(rank).manifest.mesh
        nccl_bytes = int(outcomes[rank]["nccl_bytes"])
        here = dataclasses.replace(order, card=order.card.with_nccl(nccl_bytes))
        estimate = read_estimate(here, run, journal, tuple(outcomes[rank]["notes"]), rank=rank)
        coordinate = {} if mesh is None else mesh.coordinates()
        found.append(RankEstimate(rank, coordinate, estimate, nccl_bytes, int(outcomes[rank]["communicators"])))
    said = dict.fromkeys(note for one in found for note in one.estimate.notes)
    notes = (*own_notes, *said, *_notes_on_ranks(world_size, outcomes))
    return RanksEstimate(world_size, tuple(found), notes, run)


def _notes_on_ranks(world_size: int, outcomes: Outcomes) -> Iterator[str]:
    """Yield what is assumed about communication and about ranks that were not simulated."""
    others = world_size - len(outcomes)
    if others:
        names = ", ".join(map(str, outcomes))
        yield (
            f"{counted(len(outcomes), 'rank')} of {world_size} ({names}) simulated. The other ranks are assumed to "
            "need no more. Simulate all of them with --ranks all."
        )
    if any(outcome["nccl_bytes"] for outcome in outcomes.values()):
        yield (
            "NCCL: each communicator is assumed to use what was measured on H200s of one host (NCCL 2.28). "
            "Several hosts and other versions can need more or less."
        )
    if any(outcome["assumed"] for outcome in outcomes.values()):
        kinds = {kind for outcome in outcomes.values() for kind in outcome["assumed_kinds"]}
        yield f"Values that are not computed were assumed: {describe_assumed(kinds)[0]}."
    if any(outcome["varied"] for outcome in outcomes.values()):
        yield "The steps need different amounts of memory."
