"""Triton kernels are not run on a simulated GPU, and the program's own memory is as with them.

PyTorch's build for the CPU comes without Triton, so a package with its modules and classes stands for it. Its launch
raises, as Triton's does without a driver.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import estimate_of

pytestmark = pytest.mark.torch

_DRIVER = """
class DriverConfig:
    _active = None

    @property
    def active(self):
        if self._active is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self._active

driver = DriverConfig()
"""
_JIT = """
class KernelInterface:
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

class JITFunction(KernelInterface):
    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, grid, warmup, **kwargs):
        raise AssertionError("libcuda.so cannot found!")
"""
_AUTOTUNER = """
from triton.runtime.jit import KernelInterface

class Autotuner(KernelInterface):
    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, **kwargs):
        raise AssertionError("libcuda.so cannot found!")
"""
_COMPILER = """
from collections import namedtuple

GPUTarget = namedtuple("GPUTarget", ("backend", "arch", "warp_size"))
"""
_PROGRAM = """
import sys

sys.path.insert(0, {packages!r})
import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

@JITFunction
def double(x, out, BLOCK):
    raise AssertionError("the code of a kernel was run")

tuned = Autotuner(double)
number = driver.active.get_current_device()
assert driver.active.get_current_target() == ("cuda", 90, 32)
assert driver.active.utils.get_device_properties(number)["multiprocessor_count"] == 132
assert str(driver.active.get_active_torch_device()) == "cuda:0"
linear = torch.nn.Linear(1024, 1024, bias=False).cuda()
with torch.no_grad():
    hidden = linear(torch.ones(512, 1024, device="cuda"))
    out = torch.empty_like(hidden)
    double[(8,)](x=hidden, out=out, BLOCK=64)
    tuned[lambda meta: (1 << 20,)](hidden, out)
"""
_MIB = 1 << 20


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return a directory with the package."""
    files = {
        "__init__.py": "",
        "runtime/__init__.py": "",
        "runtime/driver.py": _DRIVER,
        "runtime/jit.py": _JIT,
        "runtime/autotuner.py": _AUTOTUNER,
        "backends/__init__.py": "",
        "backends/compiler.py": _COMPILER,
    }
    for name, text in files.items():
        place = tmp_path / "packages" / "triton" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return tmp_path / "packages"


def test_kernels_are_not_run(packages: Path, tmp_path: Path) -> None:
    found = estimate_of(tmp_path, _PROGRAM.format(packages=str(packages)))
    assert found.peak_allocated_bytes == (4 + 2 + 2 + 32) * _MIB  # weights, hidden, out, and cuBLAS's workspace
    assert "Triton: kernels were not run, because nothing is computed." in found.notes
