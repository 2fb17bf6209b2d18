"""What a figure was measured on: GPU, driver, versions, commit, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "transformers", "numpy", "pyarrow", "nvidia-ml-py", "gpuledger")


def describe_environment(device: str) -> dict[str, Any]:
    """Return GPU, driver, versions, commit and date; what is not known here is None."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "python": platform.python_version(),
        "processor": _processor(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        **(_card() if device.startswith("cuda") else {"card": None, "driver": None}),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit, with ``+changes`` where the tree differs from it; None outside a checkout.

    A copy without its history is told by ``BENCH_COMMIT``.
    """
    told = os.environ.get("BENCH_COMMIT")
    if told:
        return told
    ask = ["git", "-C", str(ROOT)]
    head = subprocess.run([*ask, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return None
    changed = subprocess.run(
        [*ask, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _card() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "card": pynvml.nvmlDeviceGetName(handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        }
    finally:
        pynvml.nvmlShutdown()


def write_results(out: Path, results: dict[str, Any]) -> None:
    """Write one JSON document beside ``out`` and rename it into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(out)
