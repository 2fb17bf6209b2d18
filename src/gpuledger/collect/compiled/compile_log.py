"""What Dynamo compiled in this process: regions, why they were compiled again or not at all, and graph breaks.

Dynamo keeps the figures of its last 64 compilations, and all graph breaks since its last reset. They are read after
every graph that Inductor compiles and at the end. With another backend, only the last 64 compilations are known.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.collect.adapter import dynamo

REASONS = 3
"""Maximum number of different reasons that are kept of a region."""

REGIONS = 200
"""Maximum number of regions and of graph breaks that are kept, those that took longest to compile."""

_BRANCH = "generic_jump "
"""Begins Dynamo's reason for a break at ``if`` or ``while`` on the value of a tensor."""
_COMMENT = re.compile(r"\s{2,}#.*$")
"""The source line that follows a guard."""
_NUMBER = re.compile(r"^(?:-\s*)?\d+/\d+:\s*")
"""The number of the compiled code that precedes a guard."""

_SKIPS = re.compile(r"^(?:skipping cudagraphs due to )+", re.IGNORECASE)
"""Begins Inductor's reason for a region without a CUDA graph."""

_TYPE_OR_OBJECT = re.compile(r"^___check_(type|obj)_id\((.+), \d+\)(?:, type=<class '([^']+)'>)?.*")
"""A guard that compares a type or an object by its address."""
_FRAME = re.compile(r"^Line: (\d+), Name: (.+), Filename: (.+)$")
"""A frame of the Python stack of a compilation."""
_AROUND_TORCH_S = str(Path("torch", "_dynamo", "external_utils.py")), "inner"
"""Ends the file, and is the name, of Dynamo's function around a callable of torch, such as an ``nn.Sequential``.

All of them share its code.
"""

_OF_ANOTHER_FORM = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What private structures of another version raise. The program is then recorded without them."""


@dataclass
class _Region:
    source: str
    function: str
    compilations: int = 0
    seconds: float = 0.0
    recompilations: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    failure: str = ""
    uncaptured: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the region as in the manifest."""
        reasons = list(self.reasons)[:REASONS]
        found = {"source": self.source, "function": self.function, "compilations": self.compilations}
        found |= {"seconds": self.seconds, "recompilations": self.recompilations, "reasons": reasons}
        found |= {"failure": self.failure} if self.failure else {}
        return found | ({"uncaptured": self.uncaptured} if self.uncaptured else {})


class CompileLog:
    """The compilations since construction."""

    def __init__(self) -> None:
        self._regions: dict[tuple[str, int, str], _Region] = {}
        self._resumed: dict[tuple[str, int], list[_Region]] = {}
        self._of_frame: dict[str, _Region] = {}
        self._seen: set[tuple[str, int, bool]] = set()
        self._breaks: dict[tuple[str, str], int] = {}
        self._places: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {}
        self._known_breaks = list(_breaks())
        self._unread = ""
        try:
            self._seen.update(_key(one) for one in _metrics())
        except _OF_ANOTHER_FORM as error:
            self._unread = f"{type(error).__name__}: {error}"

    def read(self) -> None:
        """Take over the compilations since the last call."""
        try:
            self._read()
        except _OF_ANOTHER_FORM as error:
            self._unread = f"{type(error).__name__}: {error}"

    def _read(self) -> None:
        for one in _metrics():
            key = _key(one)
            if key not in self._seen:
                self._seen.add(key)
                self._add(one)
        known = {id(one) for one in self._known_breaks}
        for one in _breaks():
            if id(one) not in known:
                self._known_breaks.append(one)
                self._add_break(one)

    def describe(self) -> dict[str, Any]:
        """Return the regions and graph breaks as in the manifest, or why they are unknown; empty if there are none."""
        regions = sorted(self._regions.values(), key=lambda one: -one.seconds)[:REGIONS]
        places = sorted(map(self._break_to_json, list(self._breaks)), key=lambda one: -one["seconds"])[:REGIONS]
        found = {"regions": [one.to_json() for one in regions], "places": places, "unread": self._unread}
        return {name: value for name, value in found.items() if value}

    def _add(self, one: Any) -> None:
        """Add one compilation. That of a backward, or of a region at its limit, names no function: its frame does."""
        compile_id = str(getattr(one, "compile_id", "") or "")
        frame = compile_id.partition("/")[0]
        file, name = getattr(one, "co_filename", None), getattr(one, "co_name", None)
        if file and name:
            line = int(getattr(one, "co_firstlineno", None) or 0)
            region = self._region(*_place_of_call(one, (str(file), line, str(name))))
            self._of_frame[frame] = self._of_frame[compile_id] = region
        elif frame in self._of_frame:
            region = self._of_frame.get(compile_id, self._of_frame[frame])
        else:
            return
        region.seconds += int(getattr(one, "duration_us", None) or 0) / 1e6
        if getattr(one, "has_guarded_code", None):
            region.compilations += 1
        if getattr(one, "recompile_reason", None):
            region.recompilations += bool(getattr(one, "has_guarded_code", None))
            region.reasons[_guard_of(str(one.recompile_reason))] = None
        if getattr(one, "fail_type", None):
            region.failure = _short(str(getattr(one, "fail_reason", "") or one.fail_type))
        if getattr(one, "cudagraph_skip_reason", None):
            region.uncaptured = _SKIPS.sub("", _short(str(one.cudagraph_skip_reason))).partition(". Found from")[0]

    def _region(self, file: str, line: int, name: str) -> _Region:
        """Return the region of a function. The code after a graph break is a region of its own."""
        key = file, line, name
        if key not in self._regions:
            resumed = dynamo.RESUMED.match(name)
            function = f"{resumed.group(1)} after line {resumed.group(2)}" if resumed else name
            self._regions[key] = _Region(f"{file}:{line}", function)
            if resumed:
                self._resumed.setdefault((file, int(resumed.group(2))), []).append(self._regions[key])
        return self._regions[key]

    def _add_break(self, one: Any) -> None:
        stack = [(str(frame.filename), int(frame.lineno or 0)) for frame in getattr(one, "user_stack", None) or ()]
        where = stack[-1] if stack else ("", 0)
        said = str(getattr(one, "reason", ""))
        reason = "Branch on the value of a tensor" if said.startswith(_BRANCH) else _short(said)
        key = f"{where[0]}:{where[1]}" if stack else "", reason
        self._breaks[key] = self._breaks.get(key, 0) + 1
        self._places[key] = tuple(dict.fromkeys((*self._places.get(key, ()), *stack)))

    def _break_to_json(self, key: tuple[str, str]) -> dict[str, Any]:
        """Return a graph break with what was compiled because of it: the code after it, in every calling function."""
        after = [region for place in self._places[key] for region in self._resumed.get(place, ())]
        source, reason = key
        return {
            "source": source,
            "reason": reason,
            "count": self._breaks[key],
            "graphs": sum(one.compilations for one in after),
            "seconds": sum(one.seconds for one in after),
        }


def totals() -> tuple[int, float, dict[str, int]]:
    """Return graphs, seconds, and the number of graph breaks by reason, since the process started; zeros if unknown."""
    utils = _utils()
    counters = getattr(utils, "counters", {})
    spent_ns = getattr(utils, "cumulative_time_spent_ns", {})
    nanoseconds = sum(spent_ns.get(name, 0) for name in ("entire_frame_compile", "entire_backward_compile"))
    breaks = {str(reason): int(count) for reason, count in dict(counters.get("graph_break", {})).items()}
    return int(counters.get("stats", {}).get("unique_graphs", 0)), nanoseconds / 1e9, breaks


def _utils() -> Any:
    """Return Dynamo's module of figures; None if the program has not imported it."""
    return sys.modules.get("torch._dynamo.utils")


def _metrics() -> Iterator[Any]:
    reader = getattr(_utils(), "get_compilation_metrics", None)
    yield from reader() if reader is not None else ()


def _breaks() -> Iterable[Any]:
    return list(getattr(_utils(), "graph_break_reasons", None) or ())


def _key(one: Any) -> tuple[str, int, bool]:
    started_us = int(getattr(one, "start_time_us", None) or 0)
    return str(getattr(one, "compile_id", "")), started_us, getattr(one, "is_forward", None) is False


def _place_of_call(one: Any, place: tuple[str, int, str]) -> tuple[str, int, str]:
    """Return file, line and function of a compilation: those of the call, if the function is torch's own wrapper."""
    ending, name = _AROUND_TORCH_S
    if place[2] != name or not place[0].endswith(ending):
        return place
    torch_directory = str(Path(place[0]).parents[1] / "_")[:-1]
    for text in reversed(getattr(one, "stack_trace", None) or ()):
        found = _FRAME.match(text)
        if found and not found[3].startswith((torch_directory, "<")):
            return found[3], int(found[1]), "call" if found[2] == "<module>" else f"call in {found[2]}"
    return place


def _guard_of(reason: str) -> str:
    """Return the guard that failed, without the number of the compiled code, addresses and the source line."""
    guard = _short(_NUMBER.sub("", _COMMENT.sub("", reason.strip().partition("\n")[0])))
    found = _TYPE_OR_OBJECT.match(guard)
    if found is None:
        return guard
    kind, what, class_path = found.groups()
    class_name = (class_path or "").rpartition(".")[2]
    return f"type({what}) is {class_name}" if kind == "type" and class_name else f"{what} is the same object"


def _short(text: str) -> str:
    """Return the first line; the second one too if the first one only introduces it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines and lines[0].endswith(":") else lines[0] if lines else ""
