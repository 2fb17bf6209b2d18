"""A scripted NVML, built from C and put in front of the driver's library: the real binding runs against it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import psutil
from built import build
from folders import TESTS
from programs import SETTINGS_OF_OTHERS, Ended
from quick import quick_gpuledger

SOURCE = TESTS / "stub_nvml" / "nvml.c"


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
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
