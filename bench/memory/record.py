"""Makes the recordings that drive the tests on machines without a GPU.

Each model is trained as a user would, under ``gpuledger run``, on the GPU of this machine. Its journal, whole and
unchanged, is joined into one compressed part: no event is left out.

Usage: python bench/memory/record.py --out tests/recordings
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import ROOT, describe_environment
from journal_parts import join_parts

MODELS = ("resnet50", "gpt2", "lstm", "gan")
LIMIT_BYTES = 1 << 20


def record(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Train one model under ``gpuledger run``; return the rank's directory and what the program itself printed."""
    run = directory / f"{name}.ledger"
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(run)]
    script = [str(LIB / "train_one.py"), name, "--steps", "4"]
    done = subprocess.run([*command, *script], capture_output=True, text=True, check=True)
    return run / "rank-0", json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Record every model and say how large each recording is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "recordings")
    parser.add_argument("--models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.models:
            rank, printed = record(name, Path(directory))
            place = arguments.out / f"{name}.npz"
            join_parts(rank / "journal", place)
            size_bytes = place.stat().st_size
            about = {**describe_environment("cuda"), "program": printed, "size_bytes": size_bytes}
            place.with_suffix(".json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
            print(f"{name:10s} {size_bytes:9,} bytes  {printed}")
            if size_bytes > LIMIT_BYTES:
                raise SystemExit(f"{place}: larger than {LIMIT_BYTES:,} bytes")


if __name__ == "__main__":
    main()
