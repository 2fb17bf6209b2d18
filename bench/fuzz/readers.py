"""Feeds a reader of untrusted files with mutated ones for a fixed time, guided by coverage (atheris, not a dependency).

Anything but an error of gpuledger's own is a crash; so is memory past ten times the file and a fixed floor. The inputs
begin with the samples of the tests. Crashing inputs are kept in the directory it is started in.

Usage: pip install atheris; python bench/fuzz/readers.py torch-snapshot [--seconds 60]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gpuledger.formats"]):
    from gpuledger.formats import memory_csv, mxnet, tbd, torch_snapshot

from gpuledger.errors import GpuLedgerError

READERS = {"torch-snapshot": torch_snapshot, "mxnet": mxnet, "tbd-log": tbd, "memory-csv": memory_csv}
ROOT = Path(__file__).resolve().parents[2]
DATA = {"mxnet": "mxnet", "tbd-log": "tbd", "memory-csv": "memory_csv"}
LARGEST_BYTES = 65_536
MEMORY_LIMIT_MIB = 1_024


def seeds(name: str) -> list[bytes]:
    """Return good files of a format."""
    if name in DATA:
        return [path.read_bytes() for path in (ROOT / "tests" / "data" / DATA[name]).rglob("*") if path.is_file()]
    sys.path.insert(0, str(ROOT / "bench"))
    import pickle

    from import_snapshot import make_snapshot

    shown = [make_snapshot(events, frames) for events, frames in ((1, 0), (1, 3))]
    for snapshot in shown:
        snapshot["device_traces"][0] = snapshot["device_traces"][0][:150]
    return [pickle.dumps(snapshot, protocol) for snapshot in shown for protocol in (2, 4)]


def main() -> None:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("format", choices=READERS)
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    reader = READERS[asked.format]
    with tempfile.TemporaryDirectory() as temporary:
        path, corpus = Path(temporary) / "file", Path(temporary) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(seeds(asked.format)):
            (corpus / str(number)).write_bytes(seed)

        def read_one(data: bytes) -> None:
            path.write_bytes(data)
            try:
                reader.looks_like(path, data[:LARGEST_BYTES])
                reader.read_files((path,), "x", {})
            except GpuLedgerError:
                pass

        limits = [f"-max_total_time={asked.seconds}", f"-rss_limit_mb={MEMORY_LIMIT_MIB}", f"-max_len={LARGEST_BYTES}"]
        atheris.Setup([sys.argv[0], str(corpus), *limits], read_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
