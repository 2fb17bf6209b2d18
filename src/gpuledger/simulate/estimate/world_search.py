"""The smallest number of ranks with which a sharded program fits a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.errors import InputError, UsageError
from gpuledger.files.scratch import block_directory
from gpuledger.simulate.estimate.fit import FITS
from gpuledger.simulate.estimate.ranks import MOST_RANKS, estimate_program_ranks
from gpuledger.simulate.estimate.run import Order
from gpuledger.simulate.ranks.place import GPUS_PER_HOST
from gpuledger.units import counted, format_bytes

DEFAULT_MOST_RANKS = 1024
REFUSED = "refused"
"""Verdict of a number of ranks with which the program fails."""
_LEAST_SAVING = 0.005
"""If twice the ranks need less than this share less memory, more ranks do not help."""


@dataclass(frozen=True)
class WorldTrial:
    """One number of ranks that was tried. ``process_bytes`` is the highest of its ranks, and ``why`` the error."""

    world_size: int
    verdict: str
    process_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True)
class WorldSearch:
    """The smallest number of ranks that fits (None if none does, with the reason), and every number tried."""

    smallest: int | None
    trials: tuple[WorldTrial, ...]
    why: str = ""

    def __repr__(self) -> str:
        found = "nothing fits" if self.smallest is None else f"{self.smallest:,} ranks fit"
        return f"<WorldSearch: {found}, {counted(len(self.trials), 'number')} of ranks tried>"


def search_world_size(order: Order, say: Callable[[str], None], most: int = DEFAULT_MOST_RANKS) -> WorldSearch:
    """Return the smallest number of ranks with which a program fits.

    Raises:
        UsageError: ``most`` is not a number of ranks.
        InputError: the program fails with every number of ranks that was tried.
    """
    if not 1 <= most <= MOST_RANKS:
        raise UsageError(f"at most {most} ranks: expected 1 to {MOST_RANKS:,}", hint="For example 64")

    def try_size(world_size: int) -> WorldTrial:
        trial = _try_size(order, world_size)
        size = "" if trial.process_bytes is None else f"{format_bytes(trial.process_bytes)}, "
        say(f"gpuledger: {counted(world_size, 'rank')}: {size}{trial.verdict}{trial.why and f': {trial.why}'}")
        return trial

    found = find_smallest(try_size, most)
    if all(trial.verdict == REFUSED for trial in found.trials):
        raise InputError(found.trials[0].why, hint="Estimate one number of ranks with --world-size N")
    return found


def _try_size(order: Order, world_size: int) -> WorldTrial:
    with block_directory() as directory:
        try:
            found = estimate_program_ranks(order, world_size, directory / "trial.ledger")
        except InputError as error:
            return WorldTrial(world_size, REFUSED, why=error.message)
    verdict = FITS if all(one.estimate.fit.fits_so_far for one in found.ranks) else found.verdict
    return WorldTrial(world_size, verdict, found.highest.estimate.peak_process_bytes)


def candidates(most: int) -> tuple[int, ...]:
    """Return the numbers of ranks to choose from: each up to one host, then whole hosts."""
    return (*range(1, min(most, GPUS_PER_HOST) + 1), *range(2 * GPUS_PER_HOST, most + 1, GPUS_PER_HOST))


def find_smallest(try_size: Callable[[int], WorldTrial], most: int) -> WorldSearch:
    """Return the smallest number of ranks that fits, up to ``most``.

    The number is doubled until it fits, and then the interval is halved. If a number fits, larger ones do, except for
    those that the program refuses, such as numbers that do not divide a size of the model.

    Args:
        try_size: Returns whether a number of ranks fits.
        most: Largest number to try.
    """
    sizes = candidates(most)
    tried: dict[int, WorldTrial] = {}

    def tries(world_size: int) -> WorldTrial:
        if world_size not in tried:
            tried[world_size] = try_size(world_size)
        return tried[world_size]

    doubling = [size for size in sizes if size & (size - 1) == 0 or size == sizes[-1]]
    largest_failing, before, smallest, why = 0, None, None, f"no number of ranks up to {most:,} fits"
    for size in doubling:
        trial = tries(size)
        if trial.verdict == FITS:
            smallest = size
            break
        if trial.verdict == REFUSED:
            continue
        largest_failing = size
        if before is not None and _saves_nothing(before, trial):
            why = f"{size} ranks need as much memory per rank as {before.world_size}, so more ranks do not help"
            break
        before = trial
    if smallest is not None:
        between = [size for size in sizes if largest_failing < size < smallest]
        smallest = _halve(tries, between, smallest)
        why = ""
    return WorldSearch(smallest, tuple(tried[size] for size in sorted(tried)), why)


def _halve(tries: Callable[[int], WorldTrial], between: list[int], smallest: int) -> int:
    """Return the smallest number that fits among ascending numbers and ``smallest``, which fits."""
    while between:
        middle = len(between) // 2
        verdict = tries(between[middle]).verdict
        if verdict == FITS:
            smallest, between = between[middle], between[:middle]
        elif verdict == REFUSED:
            del between[middle]
        else:
            between = between[middle + 1 :]
    return smallest


def _saves_nothing(before: WorldTrial, after: WorldTrial) -> bool:
    if before.process_bytes is None or after.process_bytes is None:
        return False
    return after.process_bytes > before.process_bytes * (1 - _LEAST_SAVING)
