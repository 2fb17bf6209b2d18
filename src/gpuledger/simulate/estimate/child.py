"""The child process that runs a program on a simulated GPU and reports how it ended."""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from gpuledger.files.scratch import block_directory
from gpuledger.processes.child_job import job_directory, keep_stacks, serve_job
from gpuledger.simulate.estimate.forked import Spare


def follow_program(order: dict[str, Any], program: list[str]) -> dict[str, Any]:
    """Return how a program ended that was run as ``__main__`` on the simulated GPU.

    If values were assumed, it is followed again with the least and the largest of them, in forks that have torch
    loaded. ``reserved_if`` has the reserved bytes of each; None if the program failed. If it failed after out-of-memory
    errors that it seemed to handle, it is followed again without these.
    """
    follow = load_for_forks()

    def follow_again(changed: dict[str, Any]) -> dict[str, Any]:
        return follow({**order, **changed}, lambda: run_as_main(program), gc.unfreeze)

    spare = None if order.get("ranks") else Spare(follow_again)
    outcome = follow_again({"memory_errors": spare is not None})
    if spare is not None:
        from gpuledger.simulate.estimate.failures import reserved_with_both, steps_again

        if outcome["memory_errors"] and _failed(outcome):
            shutil.rmtree(Path(order["run_directory"]) / "rank-0")
            outcome = spare.run({"memory_errors": False}) or outcome
        if outcome["assumed"]:
            again = {"steps": steps_again(outcome, order["steps"]), "memory_errors": bool(outcome["memory_errors"])}
            outcome["reserved_if"] = reserved_with_both(partial(_followed_with, spare, again))
        spare.end()
    return outcome


def _failed(outcome: dict[str, Any]) -> bool:
    """Return whether a program ended with an error or before a step, or without memory after its steps."""
    is_early = outcome["ended"] == "raised" or outcome.get("status") or not outcome["steps"]
    return bool(is_early or outcome.get("out_of_memory"))


def _followed_with(spare: Spare, again: dict[str, Any], assumption: str) -> dict[str, Any]:
    with block_directory(beside=job_directory()) as directory:
        return spare.run({**again, "assumption": assumption, "run_directory": str(directory / "other.ledger")})


def load_unwatched() -> Callable[..., dict[str, Any]]:
    """Return the function that follows a program. Freezes imported objects until the first GPU allocation.

    torch's own objects are never garbage, but the collector would scan them repeatedly during the program's imports,
    which takes an eighth of their time. From the first GPU allocation on, collection works as usual.
    """
    gc.disable()
    from gpuledger.simulate.estimate.follow import follow

    gc.freeze()
    gc.enable()
    return follow


def load_for_forks() -> Callable[..., dict[str, Any]]:
    """Return the function that follows a program, after loading what torch otherwise loads in each fork.

    Without it, torch's compiler and its data loaders take most of the time of a fork.
    """
    import_module("torch._dynamo")
    import_module("torch.utils.data")
    return load_unwatched()


def run_as_main(program: list[str]) -> dict[str, Any]:
    """Run a script, or ``-m`` and a module, with its arguments, as Python itself would. Return its variables."""
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = ""
        return runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    sys.argv = program
    sys.path[0] = str(Path(program[0]).resolve().parent)
    return runpy.run_path(program[0], run_name="__main__")


def end_with_threads(status: int) -> NoReturn:
    """End this process without waiting for the program's other threads, which can wait forever."""
    alive = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    if not alive:
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    keep_stacks()
    end_with_threads(serve_job(follow_program))
