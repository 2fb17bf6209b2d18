"""What a reader takes in memory, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import sys
from pathlib import Path
import pyarrow.parquet
import gpuledger.formats.memory_csv, gpuledger.formats.mxnet.files
import gpuledger.formats.tbd, gpuledger.formats.torch_snapshot
from gpuledger.errors import GpuLedgerError
from gpuledger.formats.readers import read_files


def highest():
    # Of this program alone: the figure of getrusage begins with what the parent had when it forked.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


pyarrow.array(["a"])  # looks for pandas, and takes it in where it is installed
before = highest()
try:
    imported = read_files(sys.argv[1], (Path(sys.argv[2]),), "x", {})
    said = ""
except GpuLedgerError as error:
    said = error.message
print(highest() - before, said)
"""


def measure(format_name: str, path: Path) -> tuple[int, str]:
    """Return by how many bytes reading a file raised the peak, and the error's message ("" for none)."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", _CODE, format_name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, _, said = done.stdout.strip().partition(" ")
    return int(grown), said
