"""Counts of one step: operators, and layers with their operators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.host_overhead import AUTOGRAD_NODES, MODULE_CALLS
from gpuledger.ops.workloads.workload import Layer, Use


@dataclass
class _Seen:
    key: OperatorKey
    count: int = 0
    modules: Counter[str] = field(default_factory=Counter)
    distances_bytes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class LayerCall:
    """One call of a leaf module; values as in :class:`Layer`."""

    class_name: str
    extra_repr: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    parameters: tuple[tuple[str, tuple[int, ...]], ...]


class Tally:
    """Counts the calls of one step."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.no_kernel: Counter[str] = Counter()
        self.host_calls = 0
        self.module_calls = 0
        self.autograd_nodes = 0
        self.trained = False
        self._seen: dict[str, _Seen] = {}
        self._layers: dict[str, tuple[LayerCall, tuple[tuple[str, int], ...], int]] = {}

    def add(self, key: OperatorKey, module: str, reuse_bytes: float | None) -> None:
        """Count one call."""
        seen = self._seen.get(key.digest)
        if seen is None:
            seen = self._seen[key.digest] = _Seen(key)
        seen.count += 1
        seen.modules[module] += 1
        if reuse_bytes is not None:
            seen.distances_bytes.append(reuse_bytes)
        self.order.append(key.digest)

    def add_layer(self, call: LayerCall, start: int) -> None:
        """Count one call of a layer, with the operators since ``start`` in :attr:`order`."""
        uses = tuple(Counter(self.order[start:]).items())
        identity = json.dumps([call.__dict__, uses], sort_keys=True)
        known = self._layers.get(identity)
        self._layers[identity] = (call, uses, known[2] + 1 if known else 1)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Return the distinct operators, in order of their first call."""
        return tuple(
            Use(
                seen.key,
                seen.count,
                tuple(seen.modules.items()),
                median(seen.distances_bytes) if seen.distances_bytes else None,
            )
            for seen in self._seen.values()
        )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the distinct layers, in order of their first call."""
        return tuple(Layer(**call.__dict__, count=count, uses=uses) for call, uses, count in self._layers.values())

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the counts of other calls: operators without kernels, calls on the host, modules, autograd nodes."""
        return {
            "no_kernel": dict(self.no_kernel),
            "host_calls": self.host_calls,
            MODULE_CALLS: self.module_calls,
            AUTOGRAD_NODES: self.autograd_nodes,
        }
