"""A scripted NVML, built from C and put in front of the driver's library: the real binding runs against it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

import psutil
from built import build
from folders import TESTS
from programs import SETTINGS_OF_OTHERS, Ended
from quick import quick_gpuledger

SOURCE = TESTS / "stub_nvml" / "nvml.c"

PAUSES_S = (0.7, 3.0, 10.0)
"""How long what is watched lasts: the first time, and each time that its energy was not exact.

A sampler that waits for a processor sees too little of a short window, and says so.
"""
Measured = TypeVar("Measured")


def measured_well(measure: Callable[[float], Measured], is_enough: Callable[[Measured], bool]) -> Measured:
    """Return what ``measure`` returns for a pause in s: the first that is enough, or the last."""
    found = measure(PAUSES_S[0])
    for pause_s in PAUSES_S[1:]:
        if is_enough(found):
            break
        found = measure(pause_s)
    return found


def is_exact(energy_j: float | None, uncertainty_j: float | None) -> bool:
    """Return whether the energy of a window is known to within a tenth."""
    return energy_j is not None and uncertainty_j is not None and uncertainty_j < energy_j / 10


@cache
def library_directory() -> Path:
    """Return a directory with the stub as ``libnvidia-ml.so.1``."""
    directory = Path(mkdtemp(prefix="stub-nvml-"))
    target = directory / "libnvidia-ml.so.1"
    build(SOURCE, target, "-shared", "-fPIC", f"-Wl,-soname,{target.name}")
    return directory


def with_stub(directory: Path, **script: float) -> dict[str, str]:
    """Return an environment in which NVML is the stub, scripted by ``script``."""
    place = directory / "stub.txt"
    place.write_text("".join(f"{key} {value}\n" for key, value in script.items()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS_OF_OTHERS)}
    return {**kept, "LD_LIBRARY_PATH": str(library_directory()), "STUB_NVML": str(place)}


def sampler_of(pid: int) -> int:
    """Return the process id of the sampler that a process has started, which may have other children too."""
    children = psutil.Process(pid).children()
    return next(child.pid for child in children if any("watch_process" in word for word in child.cmdline()))


def watch(words: list[str], directory: Path, **script: float) -> Ended:
    """Return how ``gpuledger watch`` with these words ended."""
    done = subprocess.run(
        [*quick_gpuledger(), "watch", *words],
        cwd=directory,
        env=with_stub(directory, **script),
        capture_output=True,
        timeout=600,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
