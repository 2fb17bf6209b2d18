"""Census of live tensors: which kinds there are, and which object of the program has grown since an earlier census.

Bounded: one pass over all objects of the process, then a walk that ends after :data:`BUDGET_NS`, and says so.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch

from gpuledger.collect.adapter.program_objects import class_name, device_of, grad_fn_of, storage_of, without_overrides
from gpuledger.collect.flight.holders import Named, named_objects

BUDGET_NS = 50_000_000
"""Longest CPU time of a census; the pass over all objects takes 15 ms per 200,000."""

NAMES_NS = 25_000_000
"""Longest part of it for the names of what the program keeps. These come first: the pass over all objects has no limit
of its own, and a large program would leave no time."""

MOST_GROUPS = 24
LEAST_MORE = 3
"""Smallest number of elements that a container must have gained to count as grown."""

Key = tuple[int, str]


class Census:
    """One census.

    Args:
        step: The step that had just ended.
        earlier: An earlier census; what became more since then is looked for.
    """

    def __init__(self, step: int, earlier: Census | None = None) -> None:
        self.step = step
        self.named: dict[tuple[str, str, bool], Named] = {}
        started_ns = time.thread_time_ns()
        until_ns = started_ns + BUDGET_NS
        with without_overrides():
            self.named, self._has_all_names = named_objects(started_ns + NAMES_NS)
            counted = TensorCount(until_ns)
        self.groups = counted.groups
        self.is_complete = counted.is_complete and time.thread_time_ns() < until_ns
        self.holder = None if earlier is None else self._grown_most(earlier)
        self.took_ns = time.thread_time_ns() - started_ns

    def as_fact(self) -> dict[str, Any]:
        """Return the census as JSON."""
        largest = sorted(self.groups.items(), key=lambda item: -item[1][1])[:MOST_GROUPS]
        return {
            "step": self.step,
            "took_ns": self.took_ns,
            "is_complete": self.is_complete,
            "graph_nodes": max((one.size for one in self.named.values() if one.kind == "graph"), default=0),
            "groups": [
                {"device_idx": device_idx, "kind": kind, "tensors": tensors, "bytes": size}
                for (device_idx, kind), (tensors, size) in largest
            ],
            "holder": self.holder,
        }

    def _grown_most(self, earlier: Census) -> dict[str, Any] | None:
        """Return the object that has gained most elements since the earlier census.

        Tensors come before other content, and then containers without a limit before those with one.
        """
        best: tuple[tuple[int, bool, int], Named] | None = None
        for key, one in self.named.items():
            before = earlier.named.get(key)
            if before is None and not earlier._has_all_names:
                continue
            more = one.size - (before.size if before is not None else 0)
            is_graph = one.kind == "graph"
            if more < LEAST_MORE or (is_graph and more < self.step - earlier.step):
                continue
            rank = (2 if one.content in ("tensor", "graph") else 1 if one.content else 0, one.bound is None, more)
            if best is None or rank > best[0]:
                best = rank, one
        if best is None:
            return None
        found = best[1]
        words = {"kind": found.kind, "name": found.name, "where": found.where, "length": found.size}
        bound = {} if found.bound is None else {"bound": found.bound, "element_bytes": found.element_bytes}
        return {**words, "more": best[0][2], "content": found.content, **bound}


class TensorCount:
    """The live tensors that Python can reach, by kind. ``is_complete`` is False if the time did not suffice.

    ``groups`` are ``(device index, name of the autograd node or "leaf") -> [tensors, bytes]``, ``addresses`` those of
    the storages. What only a graph keeps for backward is not among them.
    """

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
        for number, tensor in enumerate(gc.get_referrers(*kinds)):  # an object refers to its class
            if id(type(tensor)) not in identities or type(tensor).__torch_dispatch__ is not plain:
                continue  # a wrapper: the wrapped tensors are found themselves
            if number % 256 == 255 and time.thread_time_ns() > until_ns:
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
