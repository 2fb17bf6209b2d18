"""Find what a replayed CUDA graph runs, by the order of its kernels.

A replay runs the kernels of its capture in the same order, but a trace joins them all with one launch. If the capture
was traced, its launches are known: a replay with the same kinds of work in the same order has their operators.

Otherwise compiled kernels are found. Generated code
lists them: a Triton kernel has the same name in both, and between two of them run the kernels of library calls. If a
replay runs the kernels of one generated function and no others, all are matched.

A graph that a program captures itself can have several functions, and other kernels between them. It is matched only if
its Triton kernels divide into functions in exactly one way, each function once, and no kernel of a library call is
missing. Kernels on several streams have no order: only a Triton kernel with a name that one function has once, and the
replay once, is matched. A traced capture with several streams is not matched, either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.journal.journal import GRAPH_RANGE, ActivityKind
from gpuledger.model.journal.reading import Journal

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


@dataclass(frozen=True)
class Captures:
    """The activities of a journal, and after them the operators of traced captures of CUDA graphs.

    ``launches`` has, by number of the capture, the kind of each launch in order, and the row of its operator, -1 if
    unknown.
    """

    table: dict[str, NDArray[Any]]
    words: list[str]
    launches: dict[int, tuple[list[int], I64]]


def activity_words(facts: Mapping[str, Any]) -> list[str]:
    """Return the names of activities, and after them those of captured operators."""
    return [*map(str, facts.get("activity_names") or []), *map(str, facts.get("captured_names") or [])]


def with_captures(journal: Journal) -> Captures:
    """Return the activities of a journal with the operators of traced captures."""
    table, captured = journal.tables["activities"], journal.tables["captures"]
    words = activity_words(journal.facts)
    if not captured["kind"].size:
        return Captures(table, words, {})
    hosts = np.flatnonzero(captured["kind"] == ActivityKind.HOST)
    count, first_name = table["kind"].size, len(journal.facts.get("activity_names") or [])
    more = {name: captured[name][hosts] for name in captured if name in table}
    nothing = {"device_idx": -1, "launch_id": 0, "inputs_id": -1}
    more |= {name: np.full(hosts.size, value, table[name].dtype) for name, value in nothing.items()}
    more["name_id"] = more["name_id"] + first_name
    joined = {name: np.concatenate([values, more[name].astype(values.dtype)]) for name, values in table.items()}
    launches = {}
    for number in np.unique(captured["capture"]).tolist():
        own = np.flatnonzero(captured["capture"] == number)
        operators = {
            launch_id: row
            for row, place in enumerate(hosts.tolist(), count)
            if captured["capture"][place] == number and (launch_id := int(captured["launch_id"][place]))
        }
        own = own[captured["kind"][own] != ActivityKind.HOST]
        kinds = captured["kind"][own].tolist()
        rows = [operators.get(launch_id, NONE) for launch_id in captured["launch_id"][own].tolist()]
        launches[number] = kinds, np.array(rows, dtype=np.int64)
    return Captures(joined, words, launches)


def match_captures(captures: Captures, rows: I64, parent: I64) -> I64:
    """Return the row of the captured operator of each replayed activity; -1 for none.

    Args:
        captures: The activities and the captures.
        rows: Rows of device events.
        parent: Row of the enclosing host event of each activity; -1 if there is none.
    """
    table = captures.table
    found = np.full(table["kind"].size, NONE, dtype=np.int64)
    if not captures.launches:
        return found
    launch_ids = table["launch_id"]
    replayed = np.unique(rows[launch_ids[rows] < 0])
    calls = np.flatnonzero((table["kind"] == ActivityKind.HOST) & (launch_ids < 0))
    for call in calls.tolist():
        mine = replayed[launch_ids[replayed] == launch_ids[call]]
        around = int(parent[call])
        number = _graph_of(captures.words[table["name_id"][around]]) if around >= 0 else NONE
        if number not in captures.launches or np.unique(table["lane"][mine]).size != 1:
            continue
        mine = mine[np.argsort(table["start_ns"][mine], kind="stable")]
        kinds, operators = captures.launches[number]
        if table["kind"][mine].tolist() == kinds:
            found[mine] = operators
    return found


def measured_parents(parent: I64, measured_count: int) -> I64:
    """Return the enclosing measured event of each measured one; -1 if there is none.

    A capture in a measured step is among the captures, too, and its events there enclose the same ones in the step.
    """
    found = parent[:measured_count].copy()
    while (copies := np.flatnonzero(found >= measured_count)).size:
        found[copies] = parent[found[copies]]
    return found


def _graph_of(word: str) -> int:
    """Return the number of the capture in the name of a range; -1 for any other name."""
    number = word.removeprefix(GRAPH_RANGE)
    return int(number) if number != word and number.isdecimal() else NONE


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


def replay_notes(is_replayed: NDArray[np.bool_], is_matched: NDArray[np.bool_]) -> list[str]:
    """Return a note if kernels of replayed CUDA graphs were not matched."""
    unmatched, count = int((is_replayed & ~is_matched).sum()), int(is_replayed.sum())
    if not unmatched:
        return []
    return [
        f"{unmatched:,} of {count:,} kernels of replayed CUDA graphs could not be matched with compiled code or with "
        "their capture. They are attributed to the module that replays the graph."
    ]
