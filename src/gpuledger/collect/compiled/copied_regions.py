"""Which module a place is in that is in a copy of a compiled region's backward, as compiled autograd makes it."""

from __future__ import annotations

from gpuledger.collect.adapter.compiler.compiled_autograd import CopiedRegion
from gpuledger.collect.attribution.module_registry import ModuleRegistry

_OUTSIDE = -1


def module_in_copy(registry: ModuleRegistry, region: CopiedRegion, path: str) -> int:
    """Return the id of the module at ``path`` in the region that a copy is of; -1 if it is not known.

    The code of a region can be compiled for one module and run for others of its class. The weights of a copy tell
    which one it runs for.
    """
    compiled = {below: registry.module_ids.get(key, _OUTSIDE) for below, key in region.modules.items()}
    known = {below: number for below, number in compiled.items() if number != _OUTSIDE}
    tops = {registry.above(number, below) for below, number in known.items()} - {_OUTSIDE}
    owners = [owner for held, _, owner in registry.parameters if owner != _OUTSIDE and id(held()) in region.weights]
    if len(tops) != 1 or not owners:  # a function with several models is a region, too
        return known.get(path, _OUTSIDE) if region.is_sure and owners and not tops else _OUTSIDE
    top = tops.pop()
    if not any(registry.is_below(owner, top) for owner in owners):
        top = _like(registry, known, registry.around(owners))
    return top if top == _OUTSIDE or not path else registry.below(top, path)


def _like(registry: ModuleRegistry, compiled: dict[str, int], inner: int) -> int:
    """Return the innermost module around ``inner`` that has modules at the paths of a compiled region; -1 for none."""
    while inner != _OUTSIDE:
        if all(registry.below(inner, path) != _OUTSIDE for path in compiled):
            return inner
        path = registry.path_of(inner)
        inner = registry.above(inner, path.rpartition(".")[2]) if path else _OUTSIDE
    return _OUTSIDE
