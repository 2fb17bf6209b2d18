"""Triton kernels on a simulated GPU: they are not run. They write into tensors that the program has allocated."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from gpuledger.simulate.gpu.patches import Patches

_WARP_SIZE = 32
_REGISTERS = 65_536
"""Registers of a multiprocessor, from compute capability 3.0 on."""
_LAUNCHERS = {
    "triton.runtime.jit": ("JITFunction",),
    "triton.runtime.autotuner": ("Autotuner", "Heuristics"),
}
"""Triton's modules, and their classes with a method ``run`` that compiles and launches a kernel."""


class TritonKernels:
    """Replaces the launch of Triton's kernels, and the driver that programs ask for the GPU's properties.

    Args:
        say: Called with sentences about the estimate.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def install(self, patches: Patches) -> None:
        """Replace them once the program imports Triton."""
        for name in _LAUNCHERS:
            patches.when_imported(name, self._replace_launch)
        patches.when_imported("triton.runtime.driver", _replace_driver)

    def _replace_launch(self, patches: Patches, module: ModuleType) -> None:
        for name in _LAUNCHERS[module.__name__]:
            kind = getattr(module, name, None)
            if kind is not None:
                patches.put(kind, "run", self._skip)

    def _skip(self, *_args: object, **_kwargs: object) -> None:
        self._say("Triton: kernels were not run, because nothing is computed.")


def _replace_driver(patches: Patches, module: ModuleType) -> None:
    patches.put(module.driver, "_active", _Driver())


class _Driver:
    """Answers for the simulated GPU as Triton's driver for CUDA does."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=_properties)

    def get_current_device(self) -> int:
        """Return the index of the current GPU."""
        return torch.cuda.current_device()

    def get_current_stream(self, _device: int) -> int:
        """Return the default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Return the current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> ModuleType:
        """Return PyTorch's functions for the GPU."""
        return torch.cuda

    def get_device_capability(self, _device: int | None = None) -> tuple[int, int]:
        """Return the GPU's compute capability."""
        return torch.cuda.get_device_capability()

    def get_current_target(self) -> Any:
        """Return what kernels are compiled for."""
        major, minor = torch.cuda.get_device_capability()
        return import_module("triton.backends.compiler").GPUTarget("cuda", 10 * major + minor, _WARP_SIZE)


def _properties(_device: int) -> dict[str, int]:
    found: Any = torch.cuda.get_device_properties(0)
    return {
        "max_shared_mem": found.shared_memory_per_block_optin,
        "max_num_regs": _REGISTERS,
        "multiprocessor_count": found.multi_processor_count,
        "warpSize": _WARP_SIZE,
    }
