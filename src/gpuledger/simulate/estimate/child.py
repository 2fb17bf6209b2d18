"""The child: runs the program on a virtual card, and writes down how it ended.

Usage: python -m gpuledger.simulate.estimate.child ORDER.json SCRIPT|-m MODULE [ARGS]…
"""

from __future__ import annotations

import gc
import json
import runpy
import sys
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
    from gpuledger.simulate.estimate.follow import follow

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


if __name__ == "__main__":
    sys.exit(main())
