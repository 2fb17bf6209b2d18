"""Gradient buckets of ``DistributedDataParallel`` without communication.

Its reducer is in C++. It allocates the buckets through operators, which are simulated, and expects a result of the
all-reduce, which a process group without communication does not return. A communication hook does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.simulate.gpu.dispatch import SimulatedMode
from gpuledger.simulate.gpu.patches import Patches


class Done:
    """The handle of a collective that has completed.

    Args:
        work: The handle that torch returned.
        tensors: The results.
    """

    def __init__(self, work: Any, tensors: list[torch.Tensor]) -> None:
        self._work, self._tensors = work, tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future with the results."""
        return _done(self._tensors)


def _done(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def _reduced(state: Any, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own classes
    """Return a bucket's gradients as if they were reduced in place, as they are without a hook."""
    return _done(bucket.buffer())


def install_reducer(patches: Patches, put: Callable[[str, Callable[..., Any]], None], mode: SimulatedMode) -> None:
    """Place buckets on the simulated GPU, and give every model without a communication hook one.

    Args:
        patches: Receives the replaced methods.
        put: Replaces a function of ``torch.distributed``.
        mode: Decides where new tensors are.
    """
    _place_buckets(patches, mode)
    hooked: WeakSet[Any] = WeakSet()
    model_class: Any = DistributedDataParallel
    forward, register, all_reduce = model_class.forward, model_class.register_comm_hook, dist.all_reduce

    def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
        hooked.add(model)
        register(model, state, hook)

    @functools.wraps(forward)  # observers of torch's own method look for it inside this one
    def forward_(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        if model not in hooked:
            register_comm_hook(model, None, _reduced)
        return forward(model, *inputs, **kwargs)

    def all_reduce_(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        work = all_reduce(tensor, op, group, async_op)
        return None if work is None else Done(work, [tensor])

    patches.put(DistributedDataParallel, "register_comm_hook", register_comm_hook)
    patches.put(DistributedDataParallel, "forward", forward_)
    put("all_reduce", all_reduce_)


def _place_buckets(patches: Patches, mode: SimulatedMode) -> None:
    """Place buckets where the parameters are. To C++, simulated parameters are on the CPU."""
    reducer: Any = dist.Reducer  # type: ignore[attr-defined]  # exported without being listed
    holds, begin, rebuild = mode.device.holds, reducer.__init__, reducer._rebuild_buckets
    on_gpu: WeakSet[Any] = WeakSet()

    def init(made: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
        is_there = any(isinstance(one, FakeTensor) and holds(one) for one in parameters)
        with _BucketsOnGpu(mode) if is_there else nullcontext():
            begin(made, parameters, *args, **kwargs)
        if is_there:
            on_gpu.add(made)

    def rebuild_buckets(made: Any) -> Any:
        with _BucketsOnGpu(mode) if made in on_gpu else nullcontext():
            return rebuild(made)

    patches.put(reducer, "__init__", init)
    patches.put(reducer, "_rebuild_buckets", rebuild_buckets)


class _BucketsOnGpu(TorchDispatchMode):
    """Places new floating-point tensors on the GPU. C++ reads and writes the others, the indices of the buckets."""

    def __init__(self, mode: SimulatedMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._where = mode.where

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = (kwargs or {}).get("dtype") or torch.get_default_dtype()
        is_bucket = func is torch.ops.aten.empty.memory_format and dtype.is_floating_point
        with torch._C.DisableTorchFunction(), self._where.asking(True) if is_bucket else nullcontext():
            return func(*args, **(kwargs or {}))
