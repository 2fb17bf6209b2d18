"""Measures how long torch looks up the source lines of allocations in observed generated code, on the CPU.

After each recorded step of a compiled program, torch looks up the line of every allocation in the position table of the
generated function. The script writes a function as Inductor does, observes it as a memory recording does, and has torch
look up all its allocations: without an observer, with one, and with one and the table that Python's compiler makes.
Times are CPU time, the median of several rounds.

Usage: python bench/time/generated_positions.py --out bench/time/results/cpu/generated_positions.json
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from torch._C import _profiler

from gpuledger.collect.adapter.compiler import code_positions, generated_code

ALLOCATIONS = (100, 250, 500)
LAUNCHES = 2
"""Kernels for each allocation."""

Notes = list[Any]


class Silent:
    """Receives the calls of observed code, and does nothing."""

    def enter(self, _inputs: Notes) -> Silent:
        """Return the object to call back."""
        return self

    def at(self, _mark: int) -> None:
        """Ignore a statement."""

    def returns(self, _tensors: Any) -> None:
        """Do nothing."""

    def made(self, _tensor: Any) -> None:
        """Ignore a buffer."""

    def leave(self) -> None:
        """Ignore the end."""


def generated(directory: Path, count: int, notes: Notes) -> ModuleType:
    """Return a module with a function that allocates ``count`` buffers. Each allocation adds its stack to ``notes``."""
    body = []
    for number in range(count):
        body.append(f"buf{number} = empty_strided_cuda((8, 512, 768), (393216, 768, 1), 'float32')")
        body += [f"triton_poi_fused_add_{number}.run(buf{number}, args, 3145728, stream=0)"] * LAUNCHES
    place = directory / f"generated_{count}.py"
    place.write_text("def call(args):\n" + "".join(f"    {line}\n" for line in [*body, "return (buf0,)"]))
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    names = vars(module)
    names["empty_strided_cuda"] = lambda *_: notes.append(_profiler.gather_traceback(True, False, False))
    names |= {f"triton_poi_fused_add_{number}": mock.Mock(spec=["run"]) for number in range(count)}
    spec.loader.exec_module(module)
    return module


def look_up_ms(module: ModuleType, notes: Notes, rounds: int) -> float:
    """Return the CPU time in which torch names the frames of all allocations of one call."""
    notes.clear()
    module.call([])
    found_ms = []
    for _ in range(rounds):
        started_s = time.process_time()
        _profiler.symbolize_tracebacks(notes)
        found_ms.append((time.process_time() - started_s) * 1e3)
    return statistics.median(found_ms)


def measure(count: int, rounds: int) -> dict[str, float]:
    """Return the times of a function with ``count`` allocations."""
    notes: Notes = []
    with tempfile.TemporaryDirectory() as directory:
        module = generated(Path(directory), count, notes)
        (function,) = generated_code.read_functions(module)
        marks = {one.line: number for number, one in enumerate(function.statements) if one.allocates}

        def observed_ms(shorten: Callable[..., Any]) -> float:
            with mock.patch.object(generated_code, "with_short_positions", shorten):
                observation = generated_code.LineObservation(function, Silent(), marks, sees_buffers=False)
            try:
                return look_up_ms(module, notes, rounds)
            finally:
                observation.remove()

        return {
            "unobserved_ms": look_up_ms(module, notes, rounds),
            "observed_ms": observed_ms(code_positions.with_short_positions),
            "observed_with_compilers_table_ms": observed_ms(lambda code: code),
        }


def main() -> None:
    """Measure functions of several sizes, write the times and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/time/results/cpu/generated_positions.json"))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    results: dict[str, Any] = {"environment": describe_environment("cpu"), "rounds": given.rounds, "allocations": {}}
    for count in ALLOCATIONS:
        results["allocations"][str(count)] = measure(count, given.rounds)
        print(count, {name: round(value, 2) for name, value in results["allocations"][str(count)].items()}, flush=True)
    write_results(given.out, results)


if __name__ == "__main__":
    main()
