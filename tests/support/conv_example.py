"""The modules of examples/conv_algorithms and its bench, as tests import them, and as scripts run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from folders import BENCH, EXAMPLES
from quick import quick_python

EXAMPLE = EXAMPLES / "conv_algorithms"
ALGORITHMS = ("direct", "im2col", "fft", "winograd", "cudnn")
MODES = ("batched", "loop")
TIMES = ("conv_ms", "overhead_ms", "total_ms")
_SHORT_NAMES = (
    "convolutions", "network", "measure", "vgg19", "environment", "conv_algorithms",
    "conv_workspaces", "conv_shapes", "conv_rows", "conv_copies", "conv_sets", "grid_train", "grid_models", "models",
    "new_models", "blind_train", "blind_convolutions", "blind_parts", "blind_volumes",
)  # fmt: skip

Load = Callable[[str], Any]
"""Imports a module of the example or of bench by its short name."""


@contextmanager
def example_modules() -> Iterator[Load]:
    """Open the example's modules; none stays behind under its short name, nor does TF32 switched off.

    torch takes one thread meanwhile. Many threads on few cores wait for each other: small convolutions then take a
    thousand times as long.
    """
    import torch

    threads = torch.get_num_threads()
    allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for place in (EXAMPLE, *(BENCH / name for name in ("lib", "memory", "estimate"))):
            patch.syspath_prepend(str(place))
        yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] in _SHORT_NAMES]:
        del sys.modules[name]
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed


def run_script_file(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script to its end, with one thread too."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([quick_python(), *command], capture_output=True, text=True, check=False, env=environment)
