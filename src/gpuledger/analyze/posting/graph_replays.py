"""Find the compiled kernels that a replayed CUDA graph runs, by their order.

A replay runs the kernels of its capture in the same order, but a trace joins them all with one launch. Generated code
lists them: a Triton kernel has the same name in both, and between two of them run the kernels of library calls. A
replay is matched only if every Triton kernel of one generated function appears in order, and nothing else does.
Kernels on several streams have no order, so they are not matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

_TRITON = "triton_"
NONE = -1


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
    for launch_id in np.unique(table["launch_id"][replayed]).tolist():
        mine = replayed[table["launch_id"][replayed] == launch_id]
        mine = mine[np.argsort(table["start_ns"][mine], kind="stable")]
        if np.unique(table["lane"][mine]).size > 1:
            continue
        names = [words[number] for number in table["name_id"][mine].tolist()]
        matches = [match for sites in functions if (match := match_names(names, sites)) is not None]
        if len(matches) == 1:
            found[mine] = matches[0]
    return found


def _functions(fusions: Sequence[Any]) -> list[list[tuple[int, str]]]:
    """Return the kernels of each generated function in order: position and name."""
    found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for number, one in enumerate(fusions):
        key = str(one["file"]), str(one.get("function") or "")
        found.setdefault(key, []).append((int(one["line"]), number, str(one["kernel"])))
    distinct = {tuple((number, kernel) for _, number, kernel in sorted(sites)) for sites in found.values()}
    return [list(sites) for sites in distinct if any(kernel.startswith(_TRITON) for _, kernel in sites)]


def match_names(names: Sequence[str], sites: Sequence[tuple[int, str]]) -> list[int] | None:
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
