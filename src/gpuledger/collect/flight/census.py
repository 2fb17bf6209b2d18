"""Census: which object of the program has grown since an earlier census, and how many tensors there are.

Bounded: a walk from the program's variables at the end of one step, and, unless that has found what grows, a count of
the tensors at the end of the next one. Both end before :data:`BUDGET_NS`, and say so.
"""

from __future__ import annotations

import gc
from typing import Any

from gpuledger.collect.adapter.program_objects import without_overrides
from gpuledger.collect.flight.element_sizes import bytes_per_element
from gpuledger.collect.flight.holders import LOCAL_OF, Named, named_objects, running_functions
from gpuledger.collect.flight.holders import Key as NameKey
from gpuledger.collect.flight.tensor_count import BUDGET_NS, TensorCount, referenced_tensors
from gpuledger.collect.flight.time_limit import OutOfTimeError, TimeLimit
from gpuledger.model.flight_facts import DATA, EXPLAINED_FRAC, FEWEST_TENSORS

NAMES_NS = 25_000_000
"""Longest part of it for the names of what the program keeps; the rest is for what the elements of these keep."""

REST_NS = 10_000_000
"""Part of it for the comparison of the names with the earlier ones, which does not look at the clock."""

MOST_GROUPS = 24
LEAST_MORE = 3
"""Smallest number of elements that a container must have gained to count as grown."""
_TIERS = {"graph": 2, "tensor": 2, "exception": 1}
"""What a container holds -> its place in the order of objects that do not explain the growth."""


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
            self.holder = None if earlier is None else self._grown_most(named, earlier, grown_bytes)
            self._before = {key: (one.size, one.prefix) for key, one in named.items()}
            self.graph_nodes = max((one.size for one in named.values() if one.kind == "graph"), default=0)
            del named
        self.took_ns = self._limit.used_ns

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
        }

    def _grown_most(self, named: dict[NameKey, Named], earlier: Census, grown_bytes: int) -> dict[str, Any] | None:
        """Return the object that explains the growth since the earlier census best.

        What has gained a large part of it comes first. Else it can be a graph, whose tensors cannot be counted, and
        then an object of which it is not known what it holds. Containers without a limit come before those with one.
        Variables of a function that was not running at the earlier census are of this step, unless they explain it.
        """
        found: list[tuple[tuple[bool, int, bool, int, int], Named, int, int]] = []
        parts: dict[tuple[str, str], list[tuple[Named, int, int]]] = {}
        """Containers that hold a small part of the growth each, by the variable that they are in."""
        for key, one in named.items():
            more = self._more(key, one, earlier)
            if more < LEAST_MORE:
                continue
            element_bytes = 1 if one.content == DATA else self._element_bytes(one)
            gained_bytes = more * element_bytes
            explains = gained_bytes >= EXPLAINED_FRAC * grown_bytes > 0
            if not (explains or self._can_be_older(one, earlier)):
                continue
            if element_bytes and not explains and "graph" not in (one.kind, one.content):
                if one.content != DATA:
                    parts.setdefault((one.name.partition("[")[0], one.where), []).append((one, more, gained_bytes))
                continue  # it holds something else, such as the losses of all steps, or shares it with others
            rank = explains, _TIERS.get(one.content, 0), one.bound is None, gained_bytes, more
            found.append((rank, one, more, element_bytes))
        for (name, where), group in parts.items():
            gained_bytes, more = sum(gained for *_, gained in group), sum(more for _, more, _ in group)
            if len(group) > 1 and gained_bytes >= EXPLAINED_FRAC * grown_bytes > 0:
                outer = named.get((name, where, ""))
                kind, size = "container" if outer is None else outer.kind, sum(one.size for one, *_ in group)
                whole = Named(kind, name, where, name, size, "tensor")
                found.append(((True, 2, True, gained_bytes, more), whole, more, gained_bytes // more))
        if not found:
            return None
        rank, best, more, element_bytes = max(found, key=lambda item: item[0])
        self._is_explained = rank[0]
        words = {"kind": best.kind, "name": best.name, "where": best.where, "path": best.path, "length": best.size}
        return {**words, "more": more, "content": best.content, "bound": best.bound, "element_bytes": element_bytes}

    @staticmethod
    def _can_be_older(one: Named, earlier: Census) -> bool:
        """Return whether an object can have been there at the earlier census, or is reached from elsewhere."""
        function = one.where.removeprefix(LOCAL_OF)
        return function == one.where or function in earlier._functions

    def _more(self, key: NameKey, one: Named, earlier: Census) -> int:
        """Return by how much an object has grown; 0 if that is not known, or if it is another object of its name."""
        size, prefix = earlier._before.get(key, (0, b""))
        if not size and not earlier._has_all_names:
            return 0
        more = one.size - size
        if one.kind == "graph":
            return more if more >= self.step - earlier.step else 0
        # what is replaced by something larger, such as a longer batch, begins with other values
        accumulates = one.prefix is None or (one.prefix and one.prefix == prefix)
        return more if one.content != DATA or accumulates else 0

    def _element_bytes(self, one: Named) -> int:
        if one.kind == "graph":
            return 0
        try:
            return bytes_per_element(one.value, self._limit)
        except OutOfTimeError:
            return 0
