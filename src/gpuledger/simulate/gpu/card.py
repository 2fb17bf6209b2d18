"""Run code on a simulated GPU: patch ``torch.cuda``, tensors and operators, and restore them afterwards."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._profiler import ProfilerState
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.assumptions import EXPECTED
from gpuledger.simulate.gpu.autocast import install_autocast
from gpuledger.simulate.gpu.choices import install_choices
from gpuledger.simulate.gpu.compiling import run_uncompiled
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.dispatch import SimulatedMode
from gpuledger.simulate.gpu.facade import CudaFacade
from gpuledger.simulate.gpu.functions import SimulatedFunctions
from gpuledger.simulate.gpu.hints import listening, place_of
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.threads import Where, simulate_threads
from gpuledger.simulate.host_numbers import HostNumbers


def let_torchvision_import() -> None:
    """Declare two operators that are missing if torchvision is built for CUDA and torch for the CPU.

    Without them, ``import torchvision`` fails, and so do libraries that import it.
    """
    spec = find_spec("torchvision")
    if torch.version.cuda is not None or spec is None or spec.origin is None or "torchvision" in sys.modules or _KEPT:
        return
    version = Path(spec.origin).with_name("version.py")
    if not version.is_file() or not re.search(r"__version__ = '[^']*\+cu", version.read_text(encoding="utf-8")):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


_KEPT: list[Any] = []


def _replace(mode: SimulatedMode, patches: Patches, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of a C++ extension by a user's function."""
    place = place_of(name)
    if place is not None:
        patches.put(*place, lambda *args, **kwargs: mode.run_instead(function, name, args, kwargs))


def _patch_generator(patches: Patches, numbers: HostNumbers, device: SimulatedDevice) -> None:
    """Notice where the program sets and reads the state of the CPU's random numbers."""

    def after(before: Callable[[], None], plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            return plain(*args, **kwargs)

        return call

    for place in (torch, torch.random):
        for name in ("manual_seed", "seed", "set_rng_state"):
            patches.put(place, name, after(numbers.forget, getattr(place, name)))
        patches.put(place, "get_rng_state", after(numbers.catch_up, place.get_rng_state))
    if hasattr(nn.init, _BOUNDED):
        patches.put(nn.init, _BOUNDED, _bounded_later(numbers, device, getattr(nn.init, _BOUNDED)))


def _patch_profiler(patches: Patches) -> None:
    """Let a profiler of the program profile the CPU only. It would try to record each operator on a GPU, and warn."""
    plain: Callable[..., Any] = torch.autograd.profiler.profile.config
    without_gpu = (ProfilerState.KINETO_GPU_FALLBACK, ProfilerState.CUDA)

    def config(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        if profiler.profiler_kind in without_gpu:
            profiler.profiler_kind = ProfilerState.KINETO
        return plain(profiler, *args, **kwargs)

    patches.put(torch.autograd.profiler.profile, "config", config)


_BOUNDED = "_no_grad_trunc_normal_"


def _bounded_later(numbers: HostNumbers, device: SimulatedDevice, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that leaves tensors without data as they are. From torch 2.13 on, it draws by their values."""

    def fill(tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None) -> Any:
        if not isinstance(tensor, FakeTensor) or device.holds(tensor):
            return plain(tensor, mean, std, a, b, generator)
        numbers.defer_normal(plain, tensor, (mean, std, a, b), {"generator": generator})
        return tensor

    return fill


@contextmanager
def in_place(
    device: SimulatedDevice,
    say: Callable[[str], None],
    assumption: str = EXPECTED,
    install_more: Callable[[Patches, SimulatedMode], None] = lambda _patches, _mode: None,
) -> Iterator[SimulatedMode]:
    """Provide ``device`` as ``cuda:0`` to this thread's code and to new threads, and restore everything at the end.

    Args:
        device: The GPU.
        say: Gets a sentence for each approximation.
        assumption: What is assumed of values that are not computed (:data:`.assumptions.ASSUMPTIONS`).
        install_more: Installs other patches for the mode, which are removed with these.
    """
    device.is_over = False
    mode = SimulatedMode(device, Where(), say, assumption)
    functions = SimulatedFunctions(mode)
    patches = Patches()
    CudaFacade(device, say).install(patches)
    install_choices(patches, functions, say)
    _patch_generator(patches, mode.host_numbers, device)
    _patch_profiler(patches)
    run_uncompiled(patches, device.uncompiled.setdefault, device.fusion)

    @contextmanager
    def in_thread() -> Iterator[None]:
        device.begin_threads()
        with device.handles_of_threads.taken(device.of_thread), mode, functions:
            yield

    simulate_threads(patches, in_thread)
    install_more(patches, mode)
    remove_autocast = install_autocast(patches)
    try:
        with listening(partial(_replace, mode, patches)), mode, functions:
            yield mode
    finally:
        device.is_over = True
        patches.undo()
        remove_autocast()
        torch.clear_autocast_cache()
