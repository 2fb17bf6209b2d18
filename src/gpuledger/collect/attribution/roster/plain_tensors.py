"""Tensors that modules hold without registering them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuledger.collect.adapter.program_objects import attributes_of, is_tensor, items_of, tensors_in
from gpuledger.collect.attribution.module_registry import ModuleRegistry

_NUMBERS_AND_NAMES = frozenset(map(id, (bool, int, float, str, bytes, type(None))))
"""Ids of the classes of most attributes. Their objects hold no tensors."""


def plain_tensors(registry: ModuleRegistry) -> Iterator[tuple[int, int, Any]]:
    """Yield ids of name and module, and the tensor, of those that live modules hold without registering them.

    They are attributes, or elements of attributes, such as a cache of keys and values.
    """
    for module in registry.live_modules():
        for key, value in items_of(attributes_of(module)):
            if id(type(value)) in _NUMBERS_AND_NAMES:
                continue
            if type(key) is str and (is_tensor(value) or not key.startswith("_")):
                for tensor in tensors_in(value, 2):
                    yield *registry.named(module, key if tensor is value else f"{key}[*]"), tensor
