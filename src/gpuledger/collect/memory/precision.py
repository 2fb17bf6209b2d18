"""The program's floating-point precision: whether it uses autocast, and the share of parameters in 32 bits."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import shape_of, without_overrides
from gpuledger.collect.attribution.module_registry import ModuleRegistry


class Precision:
    """Notices whether autocast is enabled at any time between :meth:`install` and :meth:`remove`."""

    def __init__(self, registry: ModuleRegistry, guard: Guard) -> None:
        self._registry = registry
        self._absorbs = guard.absorbs
        self._uses_autocast = False
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Observe the start of autocast.

        Raises:
            CannotInstrumentError: the function is not that of a supported torch.
        """
        self._uses_autocast = any(torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu"))
        observer = Observer(self._entered, absorbs=self._absorbs)
        self._observations.append(Observation(torch_entrances.enter_autocast(), observer))

    def remove(self) -> None:
        """Stop observing."""
        remove_all(self._observations)

    def describe(self) -> dict[str, Any]:
        """Return ``{autocast, float32_frac}``; the share of parameters in 32 bits is None without parameters."""
        sizes = {True: 0, False: 0}
        with without_overrides():
            for reference, _, _ in self._registry.parameters:
                with suppress(RuntimeError):  # a lazy parameter has no shape
                    parameter = reference()
                    if parameter is not None:
                        sizes[parameter.dtype == torch.float32] += math.prod(shape_of(parameter))
        total = sum(sizes.values())
        return {"autocast": self._uses_autocast, "float32_frac": sizes[True] / total if total else None}

    def _entered(self, context: Any) -> None:
        self._uses_autocast |= bool(context._enabled)
