"""The child process that searches the largest value of a program's argument, and tries each in a fork of its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gpuledger.files.scratch import block_directory
from gpuledger.processes.child_job import job_directory, serve_job
from gpuledger.simulate.estimate.child import end_with_threads, load_for_forks, run_as_main
from gpuledger.simulate.estimate.forked import no_output, run_forked
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.simulate.estimate.run import Order
    from gpuledger.simulate.estimate.search import Trial


def search(given: dict[str, Any], program: list[str]) -> dict[str, Any]:
    """Return the largest value that fits, and every value that was tried.

    Args:
        given: ``card``, ``steps``, ``settings`` and ``confidence`` of the estimates, the argument's ``name``, the
            ``place`` of its value in the program's arguments, and the value to ``start`` with.
        program: The program with its arguments.
    """
    follow = load_for_forks()
    from gpuledger.analyze.posting.replay import AllocatorSettings
    from gpuledger.simulate.catalogue import find_card
    from gpuledger.simulate.estimate.run import Order
    from gpuledger.simulate.estimate.search import find_largest

    card, settings = find_card(given["card"]), AllocatorSettings(**given["settings"])
    order = Order(tuple(program), card, given["steps"], given["confidence"], settings, others=())
    found = find_largest(_trials(order, given, follow), given["start"], usable_bytes=card.usable_bytes)
    return asdict(found)


def _trials(order: Order, given: dict[str, Any], follow: Callable[..., dict[str, Any]]) -> Callable[[int], Trial]:
    """Return a function that tries one value."""
    from dataclasses import replace

    from gpuledger.simulate.estimate.batch import set_argument
    from gpuledger.simulate.estimate.run import describe_order, estimate_program
    from gpuledger.simulate.estimate.search import Trial

    def in_a_fork(order: Order, directory: Path, _output: TextIO | None, assumption: str) -> dict[str, Any]:
        def run() -> dict[str, Any]:
            with no_output():
                asked = describe_order(order, directory, assumption)
                return follow(asked, lambda: run_as_main(list(order.program)), gc.unfreeze)

        return run_forked(run)

    def try_value(value: int) -> Trial:
        program = set_argument(order.program, given["place"], value)
        with block_directory(beside=job_directory()) as directory:
            place = directory / "trial.ledger"
            trial = Trial.of(value, estimate_program(replace(order, program=program), place, follower=in_a_fork))
        size, verdict = format_bytes(trial.process_bytes), trial.verdict
        print(f"gpuledger: --{given['name']} {value}: {size}, {verdict}", file=sys.stderr, flush=True)
        return trial

    return try_value


if __name__ == "__main__":
    end_with_threads(serve_job(search))
