"""What torch.compile did in a run, as text: compile time, and what became of its regions."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.compilation import Compilation, CompiledRegion, GraphBreak

REASON_CELLS = 100
"""Maximum length of a reason."""


def compilation_texts(done: Compilation | None, most: int) -> list[str]:
    """Return how long torch.compile took, and what to know of its regions; empty if it did nothing.

    Args:
        done: What it did.
        most: Maximum number of lines of each kind: failures, regions without a CUDA graph, recompilations and graph
            breaks.
    """
    if done is None:
        return []
    if not (done.graphs or done.regions or done.places or done.unread):
        return ["torch.compile was asked for and has compiled nothing"]
    texts = [f"{done.seconds:,.1f} s for {counted(done.graphs, 'graph')} of torch.compile"]
    texts += [f"regions unknown: {done.unread[:REASON_CELLS]}"] if done.unread else []
    texts += [_failure(one) for one in done.regions if one.failure][:most]
    texts += [_uncaptured(one) for one in done.regions if one.uncaptured][:most]
    again = sorted(done.regions, key=lambda one: -one.recompilations)
    texts += [_compiled_again(one) for one in again if one.recompilations][:most]
    if done.places:
        places = sorted(done.places, key=lambda one: -one.count)
        return texts + [_break(one) for one in places[:most]]
    breaks = sorted((done.breaks or {}).items(), key=lambda item: (-item[1], item[0]))
    return texts + [f"graph break, {count:,} ×: {reason[:REASON_CELLS]}" for reason, count in breaks[:most]]


def _failure(region: CompiledRegion) -> str:
    what = "compiled no more" if region.compilations else "not compiled"
    return f"{what}: {_region(region)}: {(region.failure or '')[:REASON_CELLS]}"


def _uncaptured(region: CompiledRegion) -> str:
    return f"no CUDA graph: {_region(region)}: {(region.uncaptured or '')[:REASON_CELLS]}"


def _compiled_again(region: CompiledRegion) -> str:
    why = f", first reason: {region.reasons[0][:REASON_CELLS]}" if region.reasons else ""
    return f"compiled again, {region.recompilations:,} ×: {_region(region)}{why}"


def _break(one: GraphBreak) -> str:
    where = f" ({PurePath(one.source).name})" if one.source else ""
    after = f", {counted(one.graphs, 'more graph')} in {one.seconds:,.1f} s" if one.graphs else ""
    return f"graph break, {one.count:,} ×: {one.reason[:REASON_CELLS]}{where}{after}"


def _region(region: CompiledRegion) -> str:
    return f"{region.function} ({PurePath(region.source).name})"
