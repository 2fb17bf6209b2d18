"""Census of live tensors: which kinds there are, and which object of the program has grown since an earlier census.

Bounded: a walk from the program's variables, and then, unless that has found what grows, a pass over all objects of the
process. Both end after :data:`BUDGET_NS`, and say so.
"""

from __future__ import annotations

import gc
import time
from typing import Any, ClassVar

import torch

from gpuledger.collect.adapter.program_objects import class_name, device_of, grad_fn_of, storage_of, without_overrides
from gpuledger.collect.flight.holders import Key as NameKey
from gpuledger.collect.flight.holders import Named, named_objects
from gpuledger.collect.flight.weights import bytes_per_element
from gpuledger.model.flight_facts import DATA, EXPLAINED_FRAC

BUDGET_NS = 50_000_000
"""Longest CPU time of a census; the pass over all objects takes 15 ms per 200,000."""

NAMES_NS = 25_000_000
"""Longest part of it for the names of what the program keeps. These come first: the pass over all objects has no limit
of its own, and a large program would leave no time."""

MOST_GROUPS = 24
LEAST_MORE = 3
"""Smallest number of elements that a container must have gained to count as grown."""
_TIERS = {"graph": 2, "tensor": 2, "exception": 1}
"""What a container holds -> its place in the order of objects that do not explain the growth."""

Key = tuple[int, str]


class Census:
    """One census.

    Args:
        step: The step that had just ended.
        earlier: An earlier census; what became more since then is looked for.
        grown_bytes: How much memory has grown since then.
    """

    def __init__(self, step: int, earlier: Census | None = None, grown_bytes: int = 0) -> None:
        self.step = step
        self._is_explained = False
        """Whether what grows has a name, so that the tensors need not be counted, which takes most of the time."""
        started_ns = time.thread_time_ns()
        self._until_ns = started_ns + BUDGET_NS
        with without_overrides():
            named, self._has_all_names = named_objects(started_ns + NAMES_NS)
            self.holder = None if earlier is None else self._grown_most(named, earlier, grown_bytes)
            self._before = {key: (one.size, one.prefix) for key, one in named.items()}
            self.graph_nodes = max((one.size for one in named.values() if one.kind == "graph"), default=0)
            del named
            counted = None if self._is_explained else TensorCount(self._until_ns)
        self.groups = {} if counted is None else counted.groups
        self.is_complete = counted is None or counted.is_complete
        self.took_ns = time.thread_time_ns() - started_ns

    def as_fact(self) -> dict[str, Any]:
        """Return the census as JSON."""
        largest = sorted(self.groups.items(), key=lambda item: -item[1][1])[:MOST_GROUPS]
        return {
            "step": self.step,
            "took_ns": self.took_ns,
            "is_complete": self.is_complete,
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
        """
        found: list[tuple[tuple[bool, int, bool, int, int], Named, int, int]] = []
        for key, one in named.items():
            more = self._more(key, one, earlier)
            if more < LEAST_MORE:
                continue
            element_bytes = 1 if one.content == DATA else self._element_bytes(one)
            gained_bytes = more * element_bytes
            explains = gained_bytes >= EXPLAINED_FRAC * grown_bytes > 0
            if element_bytes and not explains and "graph" not in (one.kind, one.content):
                continue  # it holds something else, such as the losses of all steps
            rank = explains, _TIERS.get(one.content, 0), one.bound is None, gained_bytes, more
            found.append((rank, one, more, element_bytes))
        if not found:
            return None
        rank, best, more, element_bytes = max(found, key=lambda item: item[0])
        self._is_explained = rank[0]
        words = {"kind": best.kind, "name": best.name, "where": best.where, "path": best.path, "length": best.size}
        return {**words, "more": more, "content": best.content, "bound": best.bound, "element_bytes": element_bytes}

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
        if one.kind == "graph" or time.thread_time_ns() > self._until_ns:
            return 0
        return bytes_per_element(one.value)


class TensorCount:
    """The live tensors that Python can reach, by kind. ``is_complete`` is False if the time did not suffice.

    ``groups`` are ``(device index, name of the autograd node or "leaf") -> [tensors, bytes]``, ``addresses`` those of
    the storages. What only a graph keeps for backward is not among them. The pass over all objects of the process
    cannot be interrupted, so it is left out if it took longer the last time than is left now.
    """

    pass_ns: ClassVar[int] = 0
    """CPU time of the last pass over all objects."""

    def __init__(self, until_ns: int) -> None:
        self.groups: dict[Key, list[int]] = {}
        self.addresses: set[int] = set()
        self.is_complete = True
        with without_overrides():
            self._count(until_ns)

    @property
    def tensors(self) -> int:
        """Return the number of tensors that have a storage of their own."""
        return len(self.addresses)

    def _count(self, until_ns: int) -> None:
        plain = torch.Tensor.__torch_dispatch__
        kinds = _tensor_classes()
        identities = set(map(id, kinds))
        started_ns = time.thread_time_ns()
        if started_ns + TensorCount.pass_ns > until_ns:
            self.is_complete = False
            return
        referrers = gc.get_referrers(*kinds)  # an object refers to its class
        TensorCount.pass_ns = time.thread_time_ns() - started_ns
        for number, tensor in enumerate(referrers):
            if id(type(tensor)) not in identities or type(tensor).__torch_dispatch__ is not plain:
                continue  # a wrapper: the wrapped tensors are found themselves
            if number % 64 == 63 and time.thread_time_ns() > until_ns:
                self.is_complete = False
                return
            try:
                storage = storage_of(tensor)
                address, size = storage.data_ptr(), storage.nbytes()
                device, node = device_of(tensor), grad_fn_of(tensor)
            except (RuntimeError, NotImplementedError):  # without a storage, or a view that was modified in place
                continue
            if size and address not in self.addresses:
                self.addresses.add(address)
                index = -1 if device.type == "cpu" else device.index or 0
                group = self.groups.setdefault((index, "leaf" if node is None else class_name(type(node))), [0, 0])
                group[0] += 1
                group[1] += size


def count_tensors() -> TensorCount:
    """Return the live tensors, counted within the CPU time of a census."""
    return TensorCount(time.thread_time_ns() + BUDGET_NS)


def _tensor_classes() -> list[type]:
    kinds: list[type] = [torch.Tensor]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    return kinds
