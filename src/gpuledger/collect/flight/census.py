"""Census: which object of the program has grown since an earlier census, and how many tensors there are.

Bounded: a walk from the program's variables at the end of one step, and, unless that has found what grows, a count of
the tensors at the end of the next one. Both end before :data:`BUDGET_NS`, and say so.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuledger.collect.adapter.program_objects import without_overrides
from gpuledger.collect.flight.element_sizes import ElementSize, size_of_element
from gpuledger.collect.flight.holders import LOCAL_OF, Named, named_objects, running_functions
from gpuledger.collect.flight.holders import Key as NameKey
from gpuledger.collect.flight.tensor_count import BUDGET_NS, TensorCount, referenced_tensors
from gpuledger.collect.flight.time_limit import OutOfTimeError, TimeLimit
from gpuledger.model.flight_facts import DATA, EXPLAINED_FRAC, FEWEST_TENSORS, LEAST_KEPT_BYTES

NAMES_NS = 25_000_000
"""Longest part of it for the names of what the program keeps; the rest is for what the elements of these keep."""

REST_NS = 10_000_000
"""Part of it for the comparison of the names with the earlier ones, which does not look at the clock."""

MOST_GROUPS = 24
LEAST_MORE = 3
"""Smallest number of elements that a container must have gained to count as grown."""
_TIERS = {"graph": 2, "tensor": 2, "exception": 1}
"""What a container holds -> its place in the order of objects that do not explain the growth."""


class _Seen(NamedTuple):
    """Step of the first census that has seen an object, its size then, and the first bytes of its data."""

    step: int
    size: int = 0
    prefix: bytes | None = b""


@dataclass(frozen=True)
class _Grown:
    """An object that has gained ``more`` elements, nodes or bytes in a number of steps."""

    named: Named
    more: int
    element: ElementSize
    explains: bool
    steps: int

    @property
    def gained_bytes(self) -> int:
        """Return the bytes that it has gained."""
        return self.more * self.element.bytes

    @property
    def keeps_tensors(self) -> bool:
        """Return whether it keeps more tensors for ever, and more than those of losses and rates."""
        is_endless = self.named.bound is None and self.named.content == "tensor"
        return is_endless and self.element.tensors > 0 and self.gained_bytes >= LEAST_KEPT_BYTES * self.steps

    def rank(self) -> tuple[bool, int, bool, int, int]:
        """Return a value by which the object that explains the growth best is the largest."""
        tier = _TIERS.get(self.named.content, 0)
        return self.explains, tier, self.named.bound is None, self.gained_bytes, self.more

    def as_fact(self) -> dict[str, Any]:
        """Return it as the JSON of a holder."""
        one = self.named
        words = {"kind": one.kind, "name": one.name, "where": one.where, "path": one.path, "length": one.size}
        sizes = {"element_bytes": self.element.bytes, "element_tensors": self.element.tensors}
        sizes["element_unused_bytes"] = self.element.unused_bytes
        return {**words, "more": self.more, "content": one.content, "bound": one.bound, **sizes}


class Census:
    """One census.

    Args:
        step: The step that had just ended.
        earlier: An earlier census; what became more since then is looked for.
        grown_bytes: How much memory has grown since then.
    """

    def __init__(self, step: int, earlier: Census | None = None, grown_bytes: int = 0) -> None:
        self.step = step
        self._earlier = earlier
        self._functions = running_functions()
        self._is_explained = False
        """Whether what grows has a name, so that the tensors need not be counted, which takes most of the time."""
        self._count: TensorCount | None = None
        self.tensor_references = referenced_tensors()
        self._collections = sum(one["collections"] for one in gc.get_stats()) if gc.isenabled() else None
        self._limit = TimeLimit(BUDGET_NS - REST_NS)
        with without_overrides():
            named, self._has_all_names = named_objects(TimeLimit(NAMES_NS))
            grown = [] if earlier is None else self._grown(named, earlier, grown_bytes)
            self.holder = self._grown_most(grown, named, grown_bytes)
            kept = [one for one in grown if one.keeps_tensors]
            self.kept = max(kept, key=lambda one: one.gained_bytes).as_fact() if kept else None
            self._before = {key: _Seen(step, one.size, one.prefix) for key, one in named.items()}
            if earlier is not None:
                earlier._learn(self)
            self.graph_nodes = max((one.size for one in named.values() if one.kind == "graph"), default=0)
            del named, grown, kept
        self.took_ns = self._limit.used_ns

    def seen_at(self, key: NameKey) -> int:
        """Return the step of the census that has seen an object first; that of this one if none has."""
        return self._before.get(key, _Seen(self.step)).step

    @property
    def needs_count(self) -> bool:
        """Return whether the tensors are to be counted: at the first census, and later where there are more of them."""
        if self._is_explained or self._count is not None:
            return False
        before = None if self._earlier is None else self._earlier.tensor_references
        if self._earlier is None or before is None or self.tensor_references is None:
            return True
        return self.tensor_references - before >= FEWEST_TENSORS * (self.step - self._earlier.step)

    def count_tensors(self) -> None:
        """Count the tensors."""
        self._count = TensorCount()
        self._earlier = None

    def as_fact(self) -> dict[str, Any]:
        """Return the census as JSON."""
        groups = {} if self._count is None else self._count.groups
        largest = sorted(groups.items(), key=lambda item: -item[1][1])[:MOST_GROUPS]
        return {
            "step": self.step,
            "took_ns": self.took_ns,
            "count_ns": None if self._count is None else self._count.took_ns,
            "is_complete": self._count is None or self._count.is_complete,
            "tensor_references": self.tensor_references,
            "collections": self._collections,
            "graph_nodes": self.graph_nodes,
            "groups": [
                {"device_idx": device_idx, "kind": kind, "tensors": tensors, "bytes": size}
                for (device_idx, kind), (tensors, size) in largest
            ],
            "holder": self.holder,
            "kept": self.kept,
        }

    def _grown(self, named: dict[NameKey, Named], earlier: Census, grown_bytes: int) -> list[_Grown]:
        """Return the objects that have grown since the earlier census.

        Variables of a function that was not running then are of this step, unless they explain the growth.
        """
        found = []
        for key, one in named.items():
            more = self._more(key, one, earlier)
            if more < LEAST_MORE:
                continue
            element = ElementSize(1) if one.content == DATA else self._element_size(one)
            explains = more * element.bytes >= EXPLAINED_FRAC * self._grown_since(key, earlier, grown_bytes) > 0
            if explains or self._can_be_older(one, earlier):
                found.append(_Grown(one, more, element, explains, self.step - earlier.seen_at(key)))
        return found

    def _grown_most(self, grown: list[_Grown], named: dict[NameKey, Named], grown_bytes: int) -> dict[str, Any] | None:
        """Return the object that explains the growth since the earlier census best.

        What has gained a large part of it comes first. Else it can be a graph, whose tensors cannot be counted, and
        then an object of which it is not known what it holds. Containers without a limit come before those with one.
        """
        found: list[_Grown] = []
        parts: dict[tuple[str, str], list[_Grown]] = {}
        """Containers that hold a small part of the growth each, by the variable that they are in."""
        for one in grown:
            if one.element.bytes and not one.explains and "graph" not in (one.named.kind, one.named.content):
                if one.named.content != DATA:
                    parts.setdefault((one.named.name.partition("[")[0], one.named.where), []).append(one)
                continue  # it holds something else, such as the losses of all steps, or shares it with others
            found.append(one)
        for (name, where), group in parts.items():
            gained_bytes, more = sum(one.gained_bytes for one in group), sum(one.more for one in group)
            if len(group) > 1 and gained_bytes >= EXPLAINED_FRAC * grown_bytes > 0:
                outer = named.get((name, where, ""))
                kind, size = "container" if outer is None else outer.kind, sum(one.named.size for one in group)
                whole = Named(kind, name, where, name, size, "tensor")
                found.append(_Grown(whole, more, ElementSize(gained_bytes // more), True, group[0].steps))
        best = max(found, key=_Grown.rank, default=None)
        self._is_explained = best is not None and best.explains
        return None if best is None else best.as_fact()

    @staticmethod
    def _can_be_older(one: Named, earlier: Census) -> bool:
        """Return whether an object can have been there at the earlier census, or is reached from elsewhere."""
        function = one.where.removeprefix(LOCAL_OF)
        return function == one.where or function in earlier._functions

    def _more(self, key: NameKey, one: Named, earlier: Census) -> int:
        """Return by how much an object has grown; 0 if that is not known, or if it is another object of its name."""
        if key not in earlier._before and not earlier._has_all_names:
            return 0
        _, size, prefix = earlier._before.get(key, _Seen(earlier.step))
        more = one.size - size
        if one.kind == "graph":
            return more if more >= self.step - earlier.step else 0
        # what is replaced by something larger, such as a longer batch, begins with other values
        accumulates = one.prefix is None or (one.prefix and one.prefix == prefix)
        return more if one.content != DATA or accumulates else 0

    def _grown_since(self, key: NameKey, earlier: Census, grown_bytes: int) -> float:
        """Return the share of the growth that came after an object was seen first."""
        seen = earlier.seen_at(key)
        return grown_bytes * (self.step - seen) / (self.step - earlier.step) if seen > earlier.step else grown_bytes

    def _learn(self, later: Census) -> None:
        """Add what a later census has seen and this one had not the time for."""
        if not self._has_all_names:
            self._before = later._before | self._before
            self._has_all_names = later._has_all_names

    def _element_size(self, one: Named) -> ElementSize:
        if one.kind == "graph":
            return ElementSize()
        try:
            return size_of_element(one.value, self._limit)
        except OutOfTimeError:
            return ElementSize()
