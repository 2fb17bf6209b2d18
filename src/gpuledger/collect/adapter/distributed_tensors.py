"""Read how a distributed tensor is divided among ranks, and what is in buckets of gradients.

No code of the program runs.

A ``DTensor`` has its device mesh and its placements in a slot. Only torch's own classes are read: a subclass of the
program counts as a tensor without a known layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    class_name,
    is_exactly,
    local_part,
    module_of_class,
    slot_of,
)

_PLACEMENTS = "torch.distributed.tensor.placement_types"
_MESH = "torch.distributed.device_mesh"
_SPEC = "torch.distributed.tensor._dtensor_spec"
_SHARDS = frozenset({"Shard", "_StridedShard"})


@dataclass(frozen=True)
class MeshPlace:
    """Names and sizes of the dimensions of a device mesh, and this rank's place in each."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    coordinate: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a distributed tensor is divided among ranks.

    ``shape`` is that of the device mesh. ``placements`` has one entry per mesh dimension: the tensor dimension that it
    divides, or -1 for a copy on each rank. ``place`` is this rank's place in the mesh that the tensor's is a part of,
    so that it has the stage of a pipeline, too.
    """

    shape: tuple[int, ...]
    placements: tuple[int, ...]
    place: MeshPlace

    @property
    def parts(self) -> int:
        """Return the number of parts that the tensor is divided into."""
        return math.prod(size for size, dim in zip(self.shape, self.placements, strict=True) if dim >= 0)

    def shard_elements(self, whole: tuple[int, ...]) -> int:
        """Return the number of elements of the largest shard of a tensor with the shape ``whole``.

        Source: each mesh dimension divides its tensor dimension as ``torch.chunk`` does, rounded up.
        """
        sizes = list(whole)
        for size, dim in zip(self.shape, self.placements, strict=True):
            if 0 <= dim < len(sizes):
                sizes[dim] = -(-sizes[dim] // size)
        return math.prod(sizes)


def layout_of_shards(tensor: Tensor) -> Layout | None:
    """Return the layout of a ``DTensor``; None for any other tensor, and if its mesh or a placement is unknown."""
    return _layout_in(_spec_of(tensor))


def _spec_of(tensor: Tensor) -> Any:
    """Return the description of a ``DTensor``'s layout; None for any other tensor."""
    if is_exactly(tensor, Tensor, torch.nn.Parameter) or local_part(tensor) is tensor:
        return None
    own = attributes_of(tensor)
    return own["_spec"] if "_spec" in own else slot_of(tensor, "_spec")


def _layout_in(spec: Any) -> Layout | None:
    held = attributes_of(spec)
    mesh, placements = held.get("mesh"), held.get("placements")
    if module_of_class(type(mesh)) != _MESH or type(placements) is not tuple:
        return None
    dims = [_divided_dim(one) for one in placements]
    return None if None in dims else _layout(mesh, tuple(dim for dim in dims if dim is not None))


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is this rank's part of a larger one.

    A training step asks for every gradient. All gradients of a parameter share one description, so it is read once.
    """
    spec = _spec_of(tensor)
    if spec is None:
        return False
    known = _descriptions.get(id(spec))
    if known is not None and known[0]() is spec:
        return known[1]
    layout = _layout_in(spec)
    divides = layout is not None and layout.parts > 1
    if module_of_class(type(spec)) == _SPEC:
        if len(_descriptions) >= MOST_DESCRIPTIONS:
            _descriptions.clear()
        _descriptions[id(spec)] = ref(spec), divides
    return divides


_descriptions: dict[int, tuple[ref[Any], bool]] = {}
"""Id of the description of a layout -> the description, and whether it divides a tensor."""
MOST_DESCRIPTIONS = 50_000


def _divided_dim(placement: Any) -> int | None:
    """Return the tensor dimension that a placement divides, -1 for a copy, None if the placement is not torch's own."""
    kind = type(placement)
    if module_of_class(kind) != _PLACEMENTS and not module_of_class(kind).startswith("torch"):
        return None
    return int(placement.dim) if class_name(kind) in _SHARDS else -1


def _layout(mesh: Any, placements: tuple[int, ...]) -> Layout | None:
    own = _place_in(mesh)
    if own is None or len(own.shape) != len(placements):
        return None
    root = attributes_of(mesh).get("_root_mesh")
    whole = _place_in(root) if module_of_class(type(root)) == _MESH else None
    return Layout(own.shape, placements, whole or own)


def _place_in(mesh: Any) -> MeshPlace | None:
    """Return this rank's place in a mesh; None if it is not part of it."""
    shape, coordinate = tuple(int(size) for size in mesh.shape), mesh.get_coordinate()
    if coordinate is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"dim{number}" for number in range(len(shape)))
    return MeshPlace(tuple(map(str, names)), shape, tuple(int(place) for place in coordinate))


class _InPlaceOfZeros(TorchDispatchMode):
    """Returns each tensor of which a copy with zeros is to be made, so that nothing is allocated."""

    def __torch_dispatch__(self, _func: Any, _types: Any, args: tuple[Any, ...] = (), _kwargs: Any = None) -> Any:
        return args[0]


def places_in_buckets(reducer: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of a reducer of ``DistributedDataParallel``, with the place of each gradient in its bucket.

    A bucket of one sparse gradient has no memory of its own. If there is one, or this version of torch does not list
    buckets, no place is known.
    """
    zeros_of = getattr(reducer, "_get_zeros_like_grad_buckets", None)
    if zeros_of is None:
        return []
    try:
        with _InPlaceOfZeros():  # type: ignore[no-untyped-call]  # torch has not annotated it
            buckets = zeros_of()
    except RuntimeError:  # of a tensor without memory, no copy can be made
        return []
    with torch._C._DisableTorchDispatch():
        pairs = [zip(bucket.parameters(), bucket.gradients(), strict=True) for bucket in buckets]
    return [pair for of_bucket in pairs for pair in of_bucket]
