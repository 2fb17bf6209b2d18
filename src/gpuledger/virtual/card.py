"""Puts a virtual card in place of the one that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gpuledger.virtual.autocast import install_autocast
from gpuledger.virtual.choices import install_choices
from gpuledger.virtual.device import VirtualDevice
from gpuledger.virtual.dispatch import VirtualMode, Where
from gpuledger.virtual.facade import CudaFacade
from gpuledger.virtual.functions import VirtualFunctions
from gpuledger.virtual.patches import Patches


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
        with mode, functions:
            yield mode
    finally:
        patches.undo()
        take_out()
        torch.clear_autocast_cache()
