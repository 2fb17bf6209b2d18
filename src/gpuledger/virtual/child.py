"""The child: runs the program on a virtual card, and writes down how it ended.

Usage: python -m gpuledger.virtual.child ORDER.json SCRIPT|-m MODULE [ARGS]…
"""

from __future__ import annotations

import gc
import json
import re
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the program as ``__main__``; return 0 where its steps were taken or the answer says why not."""
    place = Path(sys.argv[1])
    order = json.loads(place.read_text())
    program = sys.argv[2:]
    follow = load_unwatched()
    outcome = follow(order, lambda: run_as_main(program), gc.unfreeze)
    (place.parent / "outcome.json").write_text(json.dumps(outcome))
    return 0


def load_unwatched() -> Callable[..., dict[str, Any]]:
    """Return what follows a program; until that holds its first bytes, torch's own objects are not taken for garbage.

    None of them ever is, and a program's imports make the collector go through all of them again and again: an eighth
    of their time. From the first bytes on the card on everything is as in any process.
    """
    gc.disable()
    from gpuledger.virtual.follow import follow

    gc.freeze()
    gc.enable()
    return follow


def run_as_main(program: list[str]) -> None:
    """Run a script, or ``-m`` and a module, with its arguments, as Python itself would."""
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = ""
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path[0] = str(Path(program[0]).resolve().parent)
    runpy.run_path(program[0], run_name="__main__")


def last_frames(error: BaseException) -> dict[str, Any]:
    """Return an error in words, with the file and line of the program's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if "/torch/" not in f.filename and "/gpuledger/" not in f.filename and f.filename[0] != "<"
    ]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "place": place,
        "unmodelled": _unmodelled(error, frames),
    }


_WITHOUT_BYTES = re.compile(r"data is not allocated|data pointer|doesn't have storage|without storage", re.IGNORECASE)
_FOREIGN = (
    ("/torch/distributed/fsdp/", "FSDP"),
    ("/torch/distributed/_composable/", "FSDP"),
    ("/torch/distributed/", "torch.distributed"),
    ("/torch/cuda/graphs.py", "a CUDA graph"),
    ("/triton/", "a Triton kernel"),
)


def _unmodelled(error: BaseException, frames: traceback.StackSummary) -> str:
    """Return what an error comes from that is not modelled; "" where it is the program's own."""
    for part, name in _FOREIGN:
        if any(part in frame.filename for frame in frames):
            return f"{name} is not modelled"
    if isinstance(error, RuntimeError) and _WITHOUT_BYTES.search(str(error)):
        return "C++ code reads a tensor's bytes, which were never computed"
    return ""


if __name__ == "__main__":
    sys.exit(main())
