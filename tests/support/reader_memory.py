"""What a reader takes in memory, in a fork of a process that has loaded nothing but the readers."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import ctypes, json, os, sys, traceback
from pathlib import Path
import pyarrow.parquet
import gpuledger.formats.memory_csv, gpuledger.formats.mxnet.files
import gpuledger.formats.tbd, gpuledger.formats.torch_snapshot
from gpuledger.errors import GpuLedgerError
from gpuledger.formats.readers import read_files

MADV_POPULATE_READ = 22  # Linux 5.14, include/uapi/asm-generic/mman-common.h
madvise = ctypes.CDLL(None).madvise
madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def highest():
    # Of this program alone: the figure of getrusage begins with what the parent had when it forked.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def map_libraries():
    # A fork maps pages of libraries as it comes by them, which would count as memory of the reader.
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, file, *_ = line.split()
        begin, end = (int(one, 16) for one in place.split("-"))
        if rights[0] == "r" and file != "0":
            madvise(begin, end - begin, MADV_POPULATE_READ)


def measure(name, path):
    map_libraries()
    before = highest()
    try:
        read_files(name, (Path(path),), "x", {})
        said = ""
    except GpuLedgerError as error:
        said = error.message
    print(json.dumps([highest() - before, said]), flush=True)


pyarrow.array(["a"])  # looks for pandas, and takes it in where it is installed
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            measure(*json.loads(line))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Return a process that measures; it ends with this one."""
    process = subprocess.Popen([sys.executable, "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def measure(format_name: str, path: Path) -> tuple[int, str]:
    """Return by how many bytes reading a file raised the peak, and the error's message ("" for none)."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([format_name, str(path)]), file=server.stdin, flush=True)
    told = server.stdout.readline().strip()
    assert told, "the reader has ended the process"
    assert server.stdout.readline() == "\n"
    grown, said = json.loads(told)
    return int(grown), str(said)
