"""Runs programs in forks of an interpreter that has loaded torch once: a tenth of what a process of its own takes.

Reads one order per line of standard input (JSON: ``script``, ``arguments``, ``directory``, ``environment``,
``streams``) and answers with two lines, process id and status. The recorder is started in the fork as the bootstrap
starts it when torch has been imported; its modules are set aside until then, and a bare program has none of them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    """Serve orders until standard input ends."""
    import numpy.random  # noqa: F401
    import torch._dynamo  # noqa: F401  what the first optimizer loads

    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "support"))
    from preloaded import COMPILER, RECORDER, Kept, make_cheap_to_fork, set_aside

    del sys.path[1]
    sys.meta_path.insert(0, Kept(set_aside([RECORDER, COMPILER])))
    make_cheap_to_fork()
    # What the parent talks through is out of the programs' sight: they have 0, 1 and 2 and nothing else.
    orders = os.fdopen(os.dup(0))
    for line in orders:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            orders.close()
            _become(order)
            _run_program(order["script"])
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
        from gpuledger.collect.session.active import start_from_environment

        start_from_environment()


def _run_program(script: str) -> NoReturn:
    """Run the script as ``__main__`` and leave as the interpreter does, but for taking all modules apart.

    An exception is told without this file's frame. What happens when modules are taken apart is for the programs that
    have a process of their own: in a fork it costs more than all the rest.
    """
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=script, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main_module
    with open(script, "rb") as stream:
        code = compile(stream.read(), script, "exec", dont_inherit=True)
    status = 0
    try:
        exec(code, main_module.__dict__)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:
        place = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(place and place.tb_next), place and place.tb_next)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
