"""Follow a program on a simulated GPU and report how it ended."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.simulate.assumptions import EXPECTED
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.convolutions.convolutions import needs_workspace
from gpuledger.simulate.encoder_layers import FastEncoderLayers
from gpuledger.simulate.estimate.failures import describe_failure
from gpuledger.simulate.estimate.growth import GrowthWatch, StepGrowth, is_endless, is_little, still_to_come_bytes
from gpuledger.simulate.estimate.session import SimulatedSession
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.card import in_place, let_torchvision_import
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import NotModelledError, SimulatedMode
from gpuledger.simulate.gpu.functions import float_of
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.ranks.messages import Messages
from gpuledger.simulate.ranks.one_rank import OneRank, expect_one_rank
from gpuledger.simulate.ranks.place import RankError, RankPlace
from gpuledger.simulate.rest.decoding import ShortenedDecoding
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.failed_threads import FailedThreads, failure_of
from gpuledger.simulate.rest.longer import LongerLoops
from gpuledger.simulate.rest.memory_errors import HandledMemoryErrors
from gpuledger.simulate.rest.own_code import is_own, own_place
from gpuledger.simulate.rest.program_source import install_changes
from gpuledger.simulate.rest.rest import RestOfProgram
from gpuledger.simulate.rest.saved_objects import SavedObjects
from gpuledger.simulate.rest.saved_weights import SavedWeights
from gpuledger.simulate.rest.side_effects import follow_temporary_files
from gpuledger.simulate.rest.started import Started
from gpuledger.simulate.triton_kernels import TritonKernels


def describe_convolutions(device: SimulatedDevice) -> list[str]:
    """Return sentences on how many of the program's convolutions have measured workspaces."""
    shapes = device.convolutions
    if not shapes:
        return []
    if not needs_workspace(torch.empty(0), device.card.compute_capability):
        return ["Convolutions: on this GPU, cuDNN is assumed to need no workspace in float32."]
    borrowed = "" if device.card.name.endswith(MEASURED_ON) else f", and both are applied to the {device.card.name}"
    said = [
        f"Convolutions: cuDNN's workspaces of {sum(shapes.values())} of {len(shapes)} shapes were measured on an "
        f"{MEASURED_ON}, the others follow a rule{borrowed}."
    ]
    if torch.backends.cudnn.benchmark:
        said.append(
            "torch.backends.cudnn.benchmark is on: memory that cuDNN uses while it tries algorithms is not included."
        )
    return said


MEASURED_ON = "H200"


class ProgramChanges(Protocol):
    """Changes of a program that is followed, and a count of its operators on the GPU."""

    def install(self, patches: Patches) -> None:
        """Put the changes in place."""

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count one call of an operator."""


def follow(
    order: dict[str, Any],
    program: Callable[[], object],
    at_first_bytes: Callable[[], None] | None = None,
    changes: ProgramChanges | None = None,
) -> dict[str, Any]:
    """Return how a program ended on the given GPU. Its run is written to the given directory.

    Args:
        order: The GPU, number of steps, allocator settings, assumption and the run's directory; for one rank of a job
            also ``ranks``: its rank, the number of ranks and the directory of messages. With ``memory_errors``, those
            that the program handles are raised.
        program: Runs the program. What it returns is kept until the program has ended.
        at_first_bytes: Called once, before the first GPU allocation.
        changes: Change the program; by default, it is followed unchanged.
    """
    let_torchvision_import()
    device = SimulatedDevice(find_card(order["card"]), CachingAllocator(AllocatorSettings(**order["settings"])))
    device.at_first_bytes = at_first_bytes
    plan = StepPlan(order["steps"], device)
    ranks, directory = order.get("ranks"), Path(order["run_directory"])
    rest = None if ranks or order["steps"] else _rest_of(device, directory)
    longer = None if rest is None else rest.longer
    session = SimulatedSession(device, plan, directory, rank=ranks["rank"] if ranks else 0, rest=rest)
    said: dict[str, None] = {}
    started, failed_threads = Started(device), FailedThreads()
    say: Callable[[str], None] = lambda sentence: said.update({sentence: None})  # noqa: E731
    one_rank = _one_rank(ranks, say) if ranks else None
    parts: list[_Part] = [started, failed_threads, SavedObjects(say), ShortenedDecoding(device, say)]
    parts += [SavedWeights(say), TritonKernels(say), FastEncoderLayers(device)]
    parts += [] if changes is None else [changes]
    parts += [HandledMemoryErrors(device, say)] if order.get("memory_errors") else []
    install = partial(_install, parts, plan, rest, one_rank, say)
    with in_place(device, say, order.get("assumption", EXPECTED), install) as mode:
        mode.ran = None if changes is None else _until_rest(changes.count, rest)
        session.start()
        follow_temporary_files()
        with failed_threads.raising():
            outcome = _run(program, device, failed_threads, rest, with_ranks=bool(ranks))
        if rest is not None and not rest.is_shortened and outcome["ended"] == "exit":
            plan.growth = None  # all steps were simulated
        elif rest is not None and rest.growing is not None and isinstance(rest.growing.growth, StepGrowth):
            plan.growth = rest.growing.growth
        outcome["hint"] = outcome.get("hint") or started.hint()
        of_rank = (*_describe_spawned(one_rank), *started.describe(), *describe_convolutions(device))
        overlap_bytes = _overlap_bytes(device)
        if overlap_bytes:
            say(OVERLAP)
        for sentence in (*of_rank, *plan.describe(longer), *(rest.describe() if rest else ())):
            say(sentence)
        notes = one_note_for_each_text(said)
        for note in notes:
            session.journal.note(note)
        if order["steps"] is None:
            _note_growth(session, plan, device, longer)
        steps = session.steps.seen
        session.finish(outcome["ended"])
    return {
        **outcome,
        "steps": steps,
        **_facts_of_steps(plan, rest, overlap_bytes),
        **_facts_of_rank(one_rank),
        "assumed": mode.values.was_assumed,
        "assumed_kinds": sorted(mode.values.kinds),
        "has_extremes": mode.values.has_extremes or mode.decisions.has_extremes,
        "memory_errors": device.memory_errors,
        "peak_reserved_bytes": device.counters.peak_reserved_bytes,
        "allocations": device.counters.alloc_count,
        "notes": notes,
    }


def _rest_of(device: SimulatedDevice, directory: Path) -> RestOfProgram:
    return RestOfProgram(device, own_place, is_own, str(directory.absolute()), partial(GrowthWatch, device))


_AT_A_LINE = re.compile(r"(\S+:\d+): (.+)", re.DOTALL)
_MOST_LINES = 3


def one_note_for_each_text(sentences: Iterable[str]) -> list[str]:
    """Return the sentences, with one for all source lines of which the same is said: "a.py:3, b.py:7: …"."""
    lines_of: dict[str, list[str]] = {}
    for sentence in sentences:
        at_line = _AT_A_LINE.fullmatch(sentence)
        lines = lines_of.setdefault(at_line[2] if at_line else sentence, [])
        lines += [at_line[1]] if at_line else []
    return [f"{_listed(lines)}: {text}" if lines else text for text, lines in lines_of.items()]


def _listed(lines: list[str]) -> str:
    more = len(lines) - _MOST_LINES
    return ", ".join(lines) if more < 2 else f"{', '.join(lines[:_MOST_LINES])} and {more} more lines"


OVERLAP = (
    "Several threads use the GPU at once. What they need at the same time differs from run to run. The upper bound is "
    "for all of them at their peaks."
)


def _overlap_bytes(device: SimulatedDevice) -> int:
    """Return the bytes above the peak that the program needs if all of its threads have their most at once.

    0 if that is less than a hundredth of the peak.
    """
    peak_bytes = device.counters.peak_allocated_bytes
    more_bytes = 0 if device.overlap is None else device.overlap.more_bytes(peak_bytes)
    return more_bytes if more_bytes * 100 > peak_bytes else 0


class _Part(Protocol):
    """A part of the simulation that replaces functions."""

    def install(self, patches: Patches) -> None:
        """Replace them."""


def _install(
    parts: Iterable[_Part],
    plan: StepPlan,
    rest: RestOfProgram | None,
    one_rank: OneRank | None,
    say: Callable[[str], None],
    patches: Patches,
    mode: SimulatedMode,
) -> None:
    """Put the parts of the simulation in place."""
    plan.install(patches, rest)
    install_changes(patches, is_own, rest, float_of(mode))
    for part in parts:
        part.install(patches)
    if one_rank is not None:
        one_rank.install(patches, mode)
    else:
        expect_one_rank(patches, mode, say)


def _describe_spawned(one_rank: OneRank | None) -> Iterator[str]:
    """Yield a sentence if ranks are spawned processes without a process group."""
    if one_rank is not None and one_rank.is_spawned and not one_rank.initialized:
        yield "Each rank is one spawned process. Processes that use the same GPU need the sum of their memory."


def _note_growth(
    session: SimulatedSession, plan: StepPlan, device: SimulatedDevice, longer: LongerLoops | None
) -> None:
    """Store the growth of a step if the program goes on without an end."""
    growth = plan.growth
    if growth is not None and is_endless(growth, longer) and not is_little(device, growth):
        session.journal.fact(endless_bytes_per_step=growth.bytes_per_step)


def _facts_of_steps(plan: StepPlan, rest: RestOfProgram | None, overlap_bytes: int) -> dict[str, Any]:
    """Return what the steps were, as JSON."""
    return {
        "optimizers": plan.optimizers[:3],
        "with_rest": rest is not None and rest.began,
        "shortened": rest is not None and rest.is_shortened,
        "varied": plan.varied,
        "largest_of": plan.largest_of,
        "has_largest": plan.has_largest,
        "settled_step": plan.settled_step,
        "still_to_come_bytes": still_to_come_bytes(plan.growth, None if rest is None else rest.longer) + overlap_bytes,
    }


def _facts_of_rank(one_rank: OneRank | None) -> dict[str, Any]:
    """Return what the process of one rank needs beside the allocator, as JSON."""
    if one_rank is None:
        return {"nccl_bytes": 0, "communicators": 0, "initialized": False}
    return {
        "nccl_bytes": one_rank.nccl_bytes,
        "communicators": len(one_rank.communicators.by_name),
        "initialized": one_rank.initialized or one_rank.is_spawned,
    }


def _until_rest(count: Callable[..., None], rest: RestOfProgram | None) -> Callable[..., None]:
    """Return a function that counts operators until the rest begins, which other combinations run more or less of."""

    def count_step(*call: Any) -> None:
        if rest is None or not rest.began:
            count(*call)

    return count_step


def _run(
    program: Callable[[], object],
    device: SimulatedDevice,
    threads: FailedThreads,
    rest: RestOfProgram | None,
    *,
    with_ranks: bool,
) -> dict[str, Any]:
    """Run the program. Return how it ended, as JSON. An error in the rest of the program is a note."""
    try:
        _variables = program()
        threads.wait_for_others()
        device.program_ended = True
    except BaseException as raised:
        device.program_ended = True  # the traceback holds the variables of its functions until here
        error = failure_of(raised)
        if isinstance(error, StepsDone):
            return {"ended": "steps"}
        if rest is None or not rest.began:
            return _describe_end(error, with_ranks=with_ranks)
        rest.failed(error)
        return {"ended": "steps", "out_of_memory": isinstance(error, torch.OutOfMemoryError)}
    finally:
        if rest is not None:
            rest.end()
    return {"ended": "exit"}


def _describe_end(error: BaseException, *, with_ranks: bool) -> dict[str, Any]:
    """Return how a program ended with an error, as JSON. Must be called while it is handled."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
        return {**describe_failure(error), "ended": "exit", "status": status}
    if isinstance(error, NotModelledError):
        return {"ended": "not modelled", **describe_failure(error), "operator": error.operator}
    if isinstance(error, RankError):
        return {"ended": "ranks", "message": error.message, "hint": error.hint, "waits": error.waits}
    failure = describe_failure(error, with_ranks=with_ranks)
    return {"ended": "raised", **failure, "traceback": "".join(traceback.format_exception(error))}


def _one_rank(ranks: dict[str, Any], say: Callable[[str], None]) -> OneRank:
    place = RankPlace(ranks["rank"], ranks["world_size"])
    return OneRank(place, Messages(Path(ranks["messages"])), say)
