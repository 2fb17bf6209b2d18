"""``gpuledger what-if``: a recorded run replayed under other settings of the allocator."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    choose_devices,
    choose_ranks,
    device_option,
    json_option,
    open_run,
    print_json,
    print_lines,
    print_notes,
    rank_option,
    run_argument,
)
from gpuledger.errors import EmptyRunError
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank


@click.command(
    "what-if",
    epilog="""\b
Examples:
  gpuledger what-if train.ledger
  gpuledger what-if train.ledger --json""",
)
@run_argument()
@rank_option()
@device_option()
@json_option()
def what_if_command(run_path: str, rank_text: str | None, device_idx: int | None, as_json: bool) -> None:
    """Compare allocator settings on a recorded run, without a GPU.

    The requests of the recorded steps are replayed with each setting of PYTORCH_CUDA_ALLOC_CONF. The table shows the
    peak of reserved memory, smallest first. If a run has several ranks, the one that ran out of memory is replayed,
    otherwise the one with the highest peak. --rank chooses another.

    After an out-of-memory error, the last events before it are replayed, too, up to the request that failed. The answer
    is unknown if the replay with the run's own setting does not fail.
    """
    ranks = choose_ranks(open_run(run_path), rank_text)
    places = _places(ranks, device_idx)
    rank, device = _choose(places)
    from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
    from gpuledger.analyze.memory.lifetimes import device_indices
    from gpuledger.cli.predict.what_if_text import verdict_document, verdict_lines, what_if_document, what_if_lines
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.simulate.estimate.what_if import rank_settings

    failures = _failures(rank, device)
    outcomes = () if failures and device not in device_indices(rank) else rank_settings(rank, device)
    verdicts = [FailureReplay(rank, failure).verdicts() for failure in failures]
    if as_json:
        from gpuledger.model.schema.tables import SCHEMA_VERSION

        pairs = zip(failures, verdicts, strict=True)
        failed = [{"step": one.step, "settings": verdict_document(found)} for one, found in pairs]
        place = {"schema_version": SCHEMA_VERSION, "rank": rank.number, "device_idx": device}
        print_json({**place, "settings": what_if_document(outcomes), "out_of_memory": failed})
        return
    terminal = Terminal.of(sys.stdout)
    several = len(places) > 1
    texts = [[_chosen_words(rank, device, len(places), failed=bool(failures))]] if several else []
    texts += [what_if_lines(outcomes, terminal)] if outcomes else []
    for failure, found in zip(failures, verdicts, strict=True):
        texts.append([f"Out of memory in step {failure.step}", *verdict_lines(found, terminal)])
    print_lines(line for number, text in enumerate(texts) for line in (*([""] if number else []), *text))
    if device < 0:
        print_notes(["Note  CPU tensors have no caching allocator. On a GPU, their requests would reserve this."])
    elif several:
        print_notes(["Note  --rank and --device choose another."])


def _places(ranks: tuple[Rank, ...], device_idx: int | None) -> list[tuple[Rank, int]]:
    """Return each rank with each GPU that has a recorded block; without any, those that ran out of memory.

    CPU tensors count only in a run that has no others, because they have no caching allocator.
    """
    try:
        places = choose_devices(ranks, device_idx)
    except EmptyRunError:
        failed = [(rank, one.device_idx or 0) for rank in ranks for one in _failures(rank, device_idx)]
        if not failed:
            raise
        return failed
    return [place for place in places if place[1] >= 0] or places


def _choose(places: list[tuple[Rank, int]]) -> tuple[Rank, int]:
    """Return the place that ran out of memory, otherwise the one with the highest peak; of several the first."""
    from gpuledger.analyze.memory.lifetimes import device_indices
    from gpuledger.analyze.memory.peaks import allocator_peaks

    def importance(place: tuple[Rank, int]) -> tuple[bool, int]:
        rank, device = place
        peak_bytes = allocator_peaks(rank, device).peak_allocated_bytes if device in device_indices(rank) else 0
        return bool(_failures(rank, device)), peak_bytes

    return max(places, key=importance) if len(places) > 1 else places[0]


def _chosen_words(rank: Rank, device_idx: int, count: int, *, failed: bool) -> str:
    why = "ran out of memory" if failed else "highest peak"
    return f"Rank {rank.number}, {device_label(device_idx)} ({why}, of {count} in this run)"


def _failures(rank: Rank, device_idx: int | None) -> list[FailedAllocation]:
    """Return the recorded out-of-memory errors of PyTorch's allocator on a device; None selects every device."""
    return [
        one
        for one in rank.manifest.oom
        if one.failure_id is not None
        and device_idx in (None, one.device_idx)
        and not one.library  # no setting is about these
    ]
