"""Find the compiled kernels that a replayed CUDA graph runs, by their order.

A replay runs the kernels of its capture in the same order, but a trace joins them all with one launch. Generated code
lists them: a Triton kernel has the same name in both, and between two of them run the kernels of library calls. If a
replay runs the kernels of one generated function and no others, all are matched.

A graph that a program captures itself can have several functions, and other kernels between them. It is matched only if
its Triton kernels divide into functions in exactly one way, each function once, and no kernel of a library call is
missing. Kernels on several streams have no order: only a Triton kernel with a name that one function has once, and the
replay once, is matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

_TRITON, _LIBRARY = "triton_", "extern_kernels."
NONE = -1

Sites = Sequence[tuple[int, str]]
"""Position and name of the kernels of a generated function, in order."""


def match_replays(table: dict[str, NDArray[Any]], rows: I64, words: Sequence[str], fusions: Sequence[Any]) -> I64:
    """Return the compiled kernel of each activity, as its position in ``fusions``; -1 for none.

    Args:
        table: The journal's activities.
        rows: Rows of device events.
        words: Names of activities.
        fusions: The fact ``fusions``.
    """
    found = np.full(table["kind"].size, NONE, dtype=np.int64)
    functions = _functions(fusions)
    replayed = np.unique(rows[table["launch_id"][rows] < 0])
    if not functions:
        return found
    known: dict[tuple[bool, tuple[str, ...]], list[int] | None] = {}
    for launch_id in np.unique(table["launch_id"][replayed]).tolist():
        mine = replayed[table["launch_id"][replayed] == launch_id]
        mine = mine[np.argsort(table["start_ns"][mine], kind="stable")]
        names = tuple(words[number] for number in table["name_id"][mine].tolist())
        is_ordered = np.unique(table["lane"][mine]).size == 1
        if (is_ordered, names) not in known:
            known[is_ordered, names] = (_match if is_ordered else match_unordered)(names, functions)
        match = known[is_ordered, names]
        if match is not None:
            found[mine] = match
    return found


def _match(names: Sequence[str], functions: Sequence[Sites]) -> list[int] | None:
    """Return the compiled kernel of each name, -1 for none; None if no function fits, or several do."""
    matches = [match for sites in functions if (match := match_names(names, sites)) is not None]
    if matches:
        return matches[0] if len(matches) == 1 else None
    return match_several(names, functions)


def _functions(fusions: Sequence[Any]) -> list[Sites]:
    """Return the kernels of each generated function in order: position and name."""
    found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for number, one in enumerate(fusions):
        key = str(one["file"]), str(one.get("function") or "")
        found.setdefault(key, []).append((int(one["line"]), number, str(one["kernel"])))
    distinct = {tuple((number, kernel) for _, number, kernel in sorted(sites)) for sites in found.values()}
    return [list(sites) for sites in distinct if any(kernel.startswith(_TRITON) for _, kernel in sites)]


def match_names(names: Sequence[str], sites: Sites) -> list[int] | None:
    """Return the compiled kernel of each name, -1 where several are possible; None if the function does not fit.

    Args:
        names: Kernels of one replay in order.
        sites: Position and name of the kernels of one generated function in order.
    """
    matched: list[int] = []
    at = 0
    calls: list[int] = []
    for number, kernel in [*sites, (NONE, "")]:
        if kernel and not kernel.startswith(_TRITON):
            calls.append(number)
            continue
        end = at
        while end < len(names) and not (names[end].startswith(_TRITON) if kernel else False):
            end += 1
        if kernel and (end == len(names) or not _is_same(names[end], kernel)):
            return None
        if not kernel and any(name.startswith(_TRITON) for name in names[at:end]):
            return None
        between = _between(end - at, calls)
        if between is None:
            return None
        matched += between
        at, calls = end, []
        if kernel:
            matched.append(number)
            at += 1
    return matched


def match_several(names: Sequence[str], functions: Sequence[Sites]) -> list[int] | None:
    """Return the compiled kernel of each name of a replay with several functions; None if none or several ways fit.

    Args:
        names: Kernels of one replay in order.
        functions: Position and name of the kernels of each generated function in order.
    """
    triton = [place for place, name in enumerate(names) if name.startswith(_TRITON)]
    parts = _divide([names[place] for place in triton], functions)
    if not parts or len({number for number, _ in parts}) < len(parts):
        return None
    matched = [NONE] * len(names)
    end = at = 0
    before: list[tuple[int, str]] = []
    for number, count in parts:
        sites = functions[number]
        own = [place for place, (_, kernel) in enumerate(sites) if kernel.startswith(_TRITON)]
        first, last = triton[at], triton[at + count - 1]
        inside = match_names(names[first : last + 1], sites[own[0] : own[-1] + 1])
        if inside is None:
            return None
        matched[first : last + 1] = inside
        if not _match_edge(matched, end, first, [*before, *sites[: own[0]]]):
            return None
        before = list(sites[own[-1] + 1 :])
        end, at = last + 1, at + count
    return matched if _match_edge(matched, end, len(names), before) else None


def match_unordered(names: Sequence[str], functions: Sequence[Sites]) -> list[int]:
    """Return the compiled kernel of each name that is enough to know it; -1 for all others."""
    sites = [site for one in functions for site in one]
    found = []
    for name in names:
        same = [position for position, kernel in sites if kernel.startswith(_TRITON) and _is_same(name, kernel)]
        found.append(same[0] if len(same) == 1 and names.count(name) == 1 else NONE)
    return found


def _divide(names: Sequence[str], functions: Sequence[Sites]) -> list[tuple[int, int]] | None:
    """Return the functions that a sequence of Triton kernels consists of, with their number of kernels.

    None if there is no way to divide it, or more than one.
    """
    kernels = [[kernel for _, kernel in sites if kernel.startswith(_TRITON)] for sites in functions]
    ways = [0] * len(names) + [1]
    chosen: list[tuple[int, int]] = [(NONE, 0)] * len(names)
    for at in reversed(range(len(names))):
        for number, own in enumerate(kernels):
            here = names[at : at + len(own)]
            if len(here) == len(own) and ways[at + len(own)] and all(map(_is_same, here, own)):
                ways[at] += ways[at + len(own)]
                chosen[at] = number, len(own)
    if not names or ways[0] != 1:
        return None
    parts, at = [], 0
    while at < len(names):
        parts.append(chosen[at])
        at += chosen[at][1]
    return parts


def _match_edge(matched: list[int], first: int, last: int, calls: Sites) -> bool:
    """Match the kernels between two functions with library calls, and return False if there are too few kernels.

    Each of Inductor's own library calls launches a kernel. So with as many kernels as calls, nothing else ran there.
    """
    launching = [position for position, kernel in calls if kernel.startswith(_LIBRARY)]
    if launching and len(calls) == len(launching) == last - first:
        matched[first:last] = launching
    return last - first >= len(launching)


def _is_same(name: str, kernel: str) -> bool:
    """Return whether a kernel's name is that of generated code, which older versions of Triton extend."""
    rest = name.removeprefix(kernel)
    return name.startswith(kernel) and (not rest or rest.startswith("_0d"))


def _between(count: int, calls: list[int]) -> list[int] | None:
    """Return the library call of each of ``count`` kernels in a row; None if there are kernels without a call."""
    if not calls:
        return None if count else []
    if len(calls) == 1:
        return calls * count
    return list(calls) if count == len(calls) else [NONE] * count


def replay_notes(is_replayed: NDArray[np.bool_], fusion_id: I64) -> list[str]:
    """Return a note if kernels of replayed CUDA graphs were not matched."""
    unmatched, count = int((is_replayed & (fusion_id < 0)).sum()), int(is_replayed.sum())
    if not unmatched:
        return []
    return [
        f"{unmatched:,} of {count:,} kernels of replayed CUDA graphs could not be matched with compiled code. They are "
        "attributed to the module that replays the graph."
    ]
