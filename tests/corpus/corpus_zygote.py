"""Runs programs in forks of an interpreter that has loaded torch once: a tenth of what a process of its own takes.

Reads one order per line of standard input (JSON: ``script``, ``arguments``, ``directory``, ``environment``,
``streams``) and answers with two lines, process id and status. The recorder is started in the fork as the bootstrap
starts it when torch has been imported; the parent has loaded nothing of it.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any


def main() -> None:
    """Serve orders until standard input ends; a fork leaves here with the program's own end."""
    import gc

    import numpy.random  # noqa: F401
    import torch._dynamo  # noqa: F401  what the first optimizer loads

    gc.collect()
    gc.freeze()  # or each fork's end would take apart a million objects: 1 s in place of 0.3
    # What the parent talks through is out of the programs' sight: they have 0, 1 and 2 and nothing else.
    orders = os.fdopen(os.dup(0))
    for line in orders:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            orders.close()
            _become(order)
            _run_program(order["script"])
            return
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Make this fork what a process is that runs the script."""
    os.setsid()
    for number, path in enumerate(order["streams"]):
        place = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(place, number)
        os.close(place)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    sys.argv = [order["script"], *order["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[0] = os.path.dirname(order["script"])
    if "GPULEDGER_RUN" in os.environ:
        from gpuledger.collect.session import start_from_environment

        start_from_environment()


def _run_program(script: str) -> None:
    """Run the script as ``__main__``; its exception is told as the interpreter tells it, without this file's frame."""
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main_module
    with open(script, "rb") as stream:
        code = compile(stream.read(), script, "exec", dont_inherit=True)
    try:
        exec(code, main_module.__dict__)
    except Exception as error:
        place = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(place and place.tb_next), place and place.tb_next)
        sys.exit(1)


if __name__ == "__main__":
    main()
