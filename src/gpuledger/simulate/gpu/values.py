"""Values of small tensors on the simulated GPU, so that sizes that depend on values are right.

Most tensors have a shape and no data. A small tensor that the program makes from real data (ids, lengths, masks, random
numbers) also has its values, computed on the CPU: one copy per storage, so that views and in-place operators work.
Where a result depends on values that are not computed, such as the experts that a router selects, values are assumed:
nearly uniform routing, and half of a mask. ``simulate/assumptions.py`` lists the alternatives for the interval of an
estimate.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.assumptions import EXPECTED, INDICES, LARGEST, LOOPS, MASKS
from gpuledger.simulate.conditions.assumed import ASSUMED, note_uniform
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.shortcuts import tensors_in

aten = torch.ops.aten
MOST_NUMBERS, MOST_FLOATS = 1 << 22, 1 << 18
"""Largest tensors with values: of integers or booleans, and of floating-point numbers."""
MOST_BYTES = 512 << 20
"""Limit of all values together."""

_SPREAD = 0.1
"""Standard deviation of the shares of options that are chosen by values, such as experts, relative to their mean.

The entries of a batch are related, so their choices vary more from batch to batch than independent ones. With this
spread, a capacity of 1.25 times the mean is rarely exceeded.
"""
_DEVIATIONS = 4
"""Standard deviations between the expected and the largest number of random entries of a mask."""
_RANDOM = torch.Tag.nondeterministic_seeded
_LIKE = frozenset({"zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"})
_UNIFORM = frozenset({"rand", "rand_like"})
_NEW = frozenset({"new_zeros", "new_ones", "new_full"})
_OVERWRITES = frozenset({"fill_", "zero_", "copy_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"})
_MADE_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_NEVER = frozenset(
    {
        "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution", "convolution_backward", "embedding_dense_backward",
        "native_dropout", "_to_sparse", "set_", "resize_", "native_layer_norm", "native_group_norm", "_grouped_mm",
        "_softmax_backward_data", "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_",
    }
)  # fmt: skip
"""Operators of layers, and operators without results that matter here."""


@dataclass
class _Copy:
    """The values of one storage, and whether any of them was assumed."""

    bytes_: torch.UntypedStorage
    assumed: bool = False


@dataclass(frozen=True)
class _Kind:
    """What is computed of an operator: ``writes`` are the positions and names of the arguments it changes."""

    name: str
    computes: bool
    random: bool
    writes: tuple[tuple[int, str], ...]


@cache
def _kind_of(func: Any) -> _Kind:
    name = func._schema.name.rpartition("::")[2]
    writes = tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    own = func._schema.name.startswith("aten::") and not name.startswith(("_foreach", "_fused", "_cudnn", "_scaled"))
    return _Kind(name, own and name not in _NEVER | _MADE_EMPTY, _RANDOM in func.tags, writes)


def written_tensors(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes."""
    kind = _kind_of(func)
    if not kind.writes:
        return []
    return list(tensors_in([args[place] if place < len(args) else kwargs.get(name) for place, name in kind.writes]))


def _is_small(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return tensor.numel() <= (MOST_FLOATS if tensor.is_floating_point() else MOST_NUMBERS) and not tensor.is_complex()


class Values:
    """Computes values of tensors on the GPU where they are known or assumed.

    Args:
        device: The GPU, which keeps the copies by storage.
        assumption: One of :data:`gpuledger.simulate.assumptions.ASSUMPTIONS`.
    """

    def __init__(self, device: SimulatedDevice, assumption: str = EXPECTED) -> None:
        self.device = device
        self.assumption = assumption
        self.was_assumed = False
        """Whether a size or a value that the program read was assumed."""
        self.kinds: set[str] = set()
        """What was assumed: ``INDICES``, ``MASKS`` and ``LOOPS`` of :mod:`gpuledger.simulate.assumptions`."""
        self._copies: dict[int, _Copy] = device.copies
        self._generator = torch._C.Generator.__new__(torch._C.Generator, torch.device("cpu"))  # type: ignore[call-arg]
        self._generator.manual_seed(0)
        self._state: torch.Tensor | None = None
        self._lost: dict[int, weakref.ref[Any]] = {}
        """Storages of the CPU that have data, but not those that the program would have written."""

    # -- reading ----------------------------------------------------------------------------------------------------

    def of(self, tensor: torch.Tensor, *, reads: bool = False) -> torch.Tensor | None:
        """Return the values of a tensor; None if they are not known.

        Args:
            tensor: A fake tensor, or any other tensor, which is its own value.
            reads: Whether the program's sizes or control flow depend on them.
        """
        if not isinstance(tensor, FakeTensor):
            return None if self._lost and self._is_lost(tensor) else tensor
        if tensor.layout is not torch.strided:
            return None
        copy = self._copies.get(tensor.untyped_storage()._cdata)
        if copy is None:
            return None
        self.was_assumed |= reads and copy.assumed
        return _view(copy, tensor)

    def is_assumed(self, tensor: torch.Tensor) -> bool:
        """Return whether any value of a tensor's storage was assumed."""
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            return False
        copy = self._copies.get(tensor.untyped_storage()._cdata)
        return copy is not None and copy.assumed

    def mask(self, mask: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a mask that selects; they are assumed if they are not known. None if it is too large."""
        if self.of(mask) is None and _is_small(mask):
            self.assume(mask, self.half(mask))
        return self.of(mask, reads=True)

    @property
    def has_extremes(self) -> bool:
        """Return whether anything has another value with the largest of assumed values than with the least.

        Indices are the same for both.
        """
        return bool(self.kinds - {INDICES})

    def note_assumed(self) -> None:
        """Record that the number of a loop's iterations was assumed."""
        self.was_assumed = True
        self.kinds.add(LOOPS)

    def note_masks(self) -> None:
        """Record that the share of a mask was assumed."""
        self.kinds.add(MASKS)

    # -- following --------------------------------------------------------------------------------------------------

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the real result of an operator; None if an argument's values are not known."""
        kind = _kind_of(func)
        if not kind.computes:
            return None
        real_args, real_kwargs = self._real(args), self._real(kwargs)
        if real_args is None or real_kwargs is None:
            return None
        numbers = self._own_numbers() if kind.random else contextlib.nullcontext()
        with contextlib.suppress(RuntimeError, IndexError, TypeError, ValueError), numbers:
            return func(*real_args, **real_kwargs)
        return None

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Keep the values of an operator's results, if they are small and known."""
        kind = _kind_of(func)
        if kind.writes:
            self._follow_writes(kind, func, args, kwargs)
            return
        if kind.name in _UNIFORM:
            note_uniform(result)
        if kind.computes:
            self._follow_computed(kind, func, args, kwargs, result)

    def _follow_computed(self, kind: _Kind, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        first = args[0] if args else None
        if kind.name in _LIKE or kind.name in _NEW:
            if isinstance(result, torch.Tensor) and _is_small(result):
                self._keep(result, self._filled(kind, func, args, kwargs, result), False)
            return
        if isinstance(first, FakeTensor) and self.of(first) is None and func not in ASSUMED:
            return
        made = list(tensors_in(result))
        if not made or not all(_is_small(tensor) for tensor in made):
            return
        if all(tensor.untyped_storage()._cdata in self._copies for tensor in made):
            return  # a view
        if any(tensor.untyped_storage()._cdata in self._copies for tensor in made):
            return
        real = self.compute(func, args, kwargs)
        if real is not None:
            assumed = any(self.is_assumed(tensor) for tensor in (*tensors_in(args), *tensors_in(list(kwargs.values()))))
            for tensor, value in zip(made, tensors_in(real), strict=False):
                self._keep(tensor, value, assumed)
        elif func in ASSUMED:
            ASSUMED[func](self, args, result)

    def keep(self, made: Any, real: Any, assumed: bool) -> None:
        """Keep the values of results with sizes that depend on them."""
        for tensor, value in zip(tensors_in(made), tensors_in(real), strict=False):
            if _is_small(tensor):
                self._keep(tensor, value, assumed)

    def forget_written(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Forget the values of tensors that a simulated kernel changed."""
        kind = _kind_of(func)
        if kind.writes and kind.name not in _KEEP_WRITTEN:
            self.forget([args[place] if place < len(args) else kwargs.get(name) for place, name in kind.writes])

    def forget(self, tensors: Any) -> None:
        """Forget the values of tensors that an operator changed."""
        for tensor in tensors_in(tensors):
            if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided:
                self._copies.pop(tensor.untyped_storage()._cdata, None)

    def lose(self, func: Any, targets: list[torch.Tensor]) -> None:
        """Record that CPU tensors were written by an operator with unknown values."""
        for tensor in targets:
            if _kind_of(func).name.removeprefix("_foreach_") in _OVERWRITES:
                tensor.zero_()  # it could be new memory with any content
            storage = tensor.untyped_storage()
            key = storage._cdata
            self._lost[key] = weakref.ref(storage, lambda _, key=key: self._lost.pop(key, None))  # type: ignore[misc]

    # -- private ----------------------------------------------------------------------------------------------------

    def _is_lost(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._lost

    def _follow_writes(self, kind: _Kind, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        written: list[Any] = [args[place] if place < len(args) else kwargs.get(name) for place, name in kind.writes]
        if not self._copies and kind.name not in _OVERWRITES:
            return
        target = written[0]
        fresh = kind.name in _OVERWRITES and isinstance(target, FakeTensor) and self.of(target) is None
        if fresh and _is_small(target) and _is_whole(target):
            self._keep(target, torch.zeros((), dtype=target.dtype), False)
        if not kind.computes or self.compute(func, args, kwargs) is None:
            if kind.name not in _KEEP_WRITTEN:
                self.forget(written)
        elif any(self.is_assumed(tensor) for tensor in tensors_in(args)):
            for tensor in tensors_in(written):
                copy = self._copies.get(tensor.untyped_storage()._cdata)
                if copy is not None:
                    copy.assumed = True

    def _real(self, value: Any) -> Any:
        """Return arguments with their values; None if those of a tensor are not known."""
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, dict):
            found = {name: self._real(inner) for name, inner in value.items()}
            return None if any(found[name] is None and inner is not None for name, inner in value.items()) else found
        if isinstance(value, (tuple, list)) and value and any(True for _ in tensors_in(value)):
            inners = [None if inner is None else self._real(inner) for inner in value]
            missing = any(made is None and inner is not None for made, inner in zip(inners, value, strict=True))
            return None if missing else inners
        return value

    def _filled(self, kind: _Kind, func: Any, args: Any, kwargs: dict[str, Any], made: torch.Tensor) -> torch.Tensor:
        """Return the values of an operator that uses only the shape of its first argument."""
        if kind.name.startswith("rand"):
            with self._own_numbers():
                stand = torch.empty(made.shape, dtype=args[0].dtype)
                return func(stand, *args[1:], dtype=made.dtype)  # type: ignore[no-any-return]
        values: Any = {"zeros": 0, "ones": 1}.get(kind.name.removesuffix("_like").removeprefix("new_"))
        if values is None:
            values = args[-1] if len(args) > 1 else kwargs["fill_value"]
        if isinstance(values, torch.Tensor):
            values = values.item() if not isinstance(values, FakeTensor) else 0
        return torch.full((), values, dtype=made.dtype)

    def _keep(self, tensor: torch.Tensor, value: torch.Tensor, assumed: bool) -> None:
        """Keep the values of a fake tensor on the GPU."""
        if not isinstance(tensor, FakeTensor) or not self.device.holds(tensor) or isinstance(value, FakeTensor):
            return
        storage = tensor.untyped_storage()
        size_bytes = storage.nbytes()
        if size_bytes > MOST_NUMBERS * 8 or self.device.copied_bytes + size_bytes > MOST_BYTES:
            return
        copy = _Copy(torch.UntypedStorage(size_bytes), assumed)
        with contextlib.suppress(RuntimeError):
            _view(copy, tensor).copy_(value)
            self.device.keep_copy(storage._cdata, copy, size_bytes)

    def assume(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Keep assumed values of a tensor on the GPU."""
        self._keep(tensor, value, True)

    def half(self, mask: torch.Tensor, share: float | None = None) -> torch.Tensor:
        """Return values of a mask: half of it on average, or a share that follows from a probability."""
        self.kinds.add(MASKS)
        if share is not None:
            deviation = _DEVIATIONS * math.sqrt(share * (1 - share) / max(mask.numel(), 1))
            more = {EXPECTED: 0.0, LARGEST: deviation}.get(self.assumption, -deviation)
            return torch.rand(mask.shape, generator=self._generator) < share + more
        if self.assumption == EXPECTED:
            return torch.rand(mask.shape, generator=self._generator) < 0.5
        return torch.full((), self.assumption == LARGEST)

    def choice(self, shape: Any, options: int, *, related: bool = True) -> torch.Tensor:
        """Return indices below ``options``: random ones, or the same for all.

        Args:
            shape: Of the indices.
            options: Their number.
            related: Whether the shares of the options vary, because the values that choose them are related.
        """
        self.kinds.add(INDICES)
        if self.assumption != EXPECTED or options < 1:
            return torch.zeros((), dtype=torch.int64)
        if not related or options > math.prod(shape):
            return torch.randint(options, tuple(shape), generator=self._generator)
        ends = self._shares(options).cumsum(0)
        return torch.bucketize(torch.rand(tuple(shape), generator=self._generator) * ends[-1], ends[:-1])

    def _shares(self, options: int) -> torch.Tensor:
        """Return the shares of options, relative to their mean. They differ from call to call."""
        return (1 + _SPREAD * torch.randn(options, generator=self._generator)).clamp(min=_SPREAD)

    def order(self, shape: Any, dim: int, count: int) -> torch.Tensor:
        """Return the indices of the ``count`` largest of random numbers along a dimension."""
        self.kinds.add(INDICES)
        if self.assumption != EXPECTED:
            sizes = [1] * len(shape)
            sizes[dim] = count
            return torch.arange(count).view(sizes)
        keys = torch.rand(tuple(shape), generator=self._generator)
        options = shape[dim]
        if count < options <= keys.numel() // options:
            sizes = [1] * len(shape)
            sizes[dim] = options
            keys = keys ** (1 / self._shares(options)).view(sizes)  # the largest of these have the shares
        return keys.topk(count, dim).indices

    @contextlib.contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """Draw random numbers from a generator that the program does not use."""
        program = torch._C.default_generator.get_state()
        if self._state is not None:
            torch._C.default_generator.set_state(self._state)
        try:
            yield
        finally:
            self._state = torch._C.default_generator.get_state()
            torch._C.default_generator.set_state(program)


_KEEP_WRITTEN = frozenset({"_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"})


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor covers its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _view(copy: _Copy, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on a copy, with the layout of a fake tensor."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # a function of the GPU's tensors can ask
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(copy.bytes_, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
