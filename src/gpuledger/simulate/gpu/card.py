"""Puts a virtual GPU in place of the one that is not there."""

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

from gpuledger.simulate.gpu.autocast import install_autocast
from gpuledger.simulate.gpu.choices import install_choices
from gpuledger.simulate.gpu.device import VirtualDevice
from gpuledger.simulate.gpu.dispatch import VirtualMode, Where
from gpuledger.simulate.gpu.facade import CudaFacade
from gpuledger.simulate.gpu.functions import VirtualFunctions
from gpuledger.simulate.gpu.hints import heard, place_of
from gpuledger.simulate.gpu.patches import Patches


def let_torchvision_import() -> None:
    """Declare the two operators that a torchvision built for CUDA lacks beside a torch built for the CPU.

    Without them ``import torchvision`` fails there, and with it that of much else.
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


def _stand_in(mode: VirtualMode, patches: Patches, name: str, told: Callable[..., Any]) -> None:
    """Put a user's function in the place of one of a C++ extension."""
    place = place_of(name)
    if place is not None:
        patches.put(*place, lambda *args, **kwargs: mode.as_told(told, name, args, kwargs))


@contextmanager
def in_place(device: VirtualDevice, say: Callable[[str], None]) -> Iterator[VirtualMode]:
    """Let this thread's code find ``device`` as ``cuda:0``; everything is put back at the end."""
    mode = VirtualMode(device, Where(), say)
    functions = VirtualFunctions(mode)
    patches = Patches()
    CudaFacade(device).install(patches)
    install_choices(patches, functions, say)
    take_out = install_autocast(patches)
    try:
        with heard(partial(_stand_in, mode, patches)), mode, functions:
            yield mode
    finally:
        patches.undo()
        take_out()
        torch.clear_autocast_cache()
