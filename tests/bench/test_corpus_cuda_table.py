"""The CUDA programs of the corpus, and the table that bench/harm/corpus_cuda.py makes of their executions."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from folders import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROGRAMS = sorted((ROOT / "tests" / "corpus" / "cuda_programs").glob("*/*.py"))
OTHERS = {"torch", "corpus_state"}
"""What a program may import beside the standard library."""


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """Load the script with the modules it imports by plain names, and forget those again."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = [str(ROOT / "bench" / "harm"), str(ROOT / "tests" / "corpus")]
    yield importlib.import_module("corpus_cuda")
    sys.path[:] = path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith((str(ROOT / "bench"), str(ROOT / "tests" / "corpus"))):
            del sys.modules[name]


def test_the_runner_finds_every_program_and_understands_its_header(bench: ModuleType) -> None:
    programs = bench.find_programs("cuda")
    own = [program for program in programs if "cuda" not in program.devices]
    shared = [program for program in programs if "cuda" in program.devices]
    assert [program.path for program in own] == PROGRAMS
    assert len(programs) >= 40
    assert len(shared) >= 10
    assert {dict(program.environment)["CORPUS_DEVICE"] for program in shared} == {"cuda"}
    assert len({program.name for program in programs}) == len(programs)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_program_is_a_plain_script_that_knows_nothing_of_the_recorder(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    assert ast.get_docstring(tree)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert not imported - OTHERS - sys.stdlib_module_names
    assert "torch" in imported


def outcome(bench: ModuleType, peak_bytes: int, **more: Any) -> Any:
    """Return how an execution ended that reported a peak and a hash of its weights."""
    report = {"label": "end", "weights": "abc", "process": {"native_threads": peak_bytes}} | more
    counters = {"allocated_bytes.all.peak": peak_bytes, "reserved_bytes.all.peak": 4 << 20}
    report["cuda"] = {"allocators": [counters], "random": ["def"]}
    return bench.Outcome(0, b"", b"", {"end": report}, {}, 0)


def row_of(bench: ModuleType, recorded: Any, *bare: Any, differences: tuple[str, ...] = ()) -> dict[str, Any]:
    record = bench.Record("streams/side", "", "fresh", 0, differences, (), None, 1.0, 2.0)
    row: dict[str, Any] = bench.describe(record, recorded, list(bare))
    return row


def test_a_row_of_equal_executions_is_equal_in_every_column(bench: ModuleType) -> None:
    row = row_of(bench, *(outcome(bench, 1 << 20) for _ in range(3)))
    assert row["equal"]
    assert all(row[name] for name in row if name.endswith("_equal"))
    assert row["peak_allocated_bytes"] == {"bare": [1 << 20, 1 << 20], "recorded": 1 << 20}


def test_a_peak_of_other_bytes_and_other_weights_show_in_their_columns(bench: ModuleType) -> None:
    bare = [outcome(bench, 1 << 20) for _ in range(2)]
    told = ("stderr: +more", "end.weights: abc bare, xyz recorded", "end.process.descriptors: without [], with [1]")
    row = row_of(bench, outcome(bench, (1 << 20) + 512, weights="xyz"), *bare, differences=told)
    wrong = {name for name in row if name.endswith("equal") and row[name] is False}
    assert wrong == {"equal", "results_equal", "stderr_equal", "peak_allocated_bytes_equal"}
    assert (bench.count([row])["equal"], bench.count([row])["different"]) == (0, 1)
    assert bench.count([row])["peak_allocated_bytes_different"] == 1
    assert bench.count([row])["peak_reserved_bytes_equal"] == 1


def test_what_a_program_does_not_report_is_missing_and_not_zero(bench: ModuleType) -> None:
    silent = bench.Outcome(0, b"", b"", {}, {}, 0)
    row = row_of(bench, silent, silent, silent)
    assert row["peak_allocated_bytes"] == {"bare": [None, None], "recorded": None}
    assert row["peak_allocated_bytes_equal"] is row["results_equal"] is None


def test_a_program_that_runs_bare_once_has_its_row(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner runs it bare again only if it differs recorded, and after that."""
    (program,) = bench.find_programs("cuda", "streams/side")
    threads = {"native_threads": ["python3"]}
    small, large = outcome(bench, 1 << 20, process=threads), outcome(bench, 2 << 20, process=threads)
    monkeypatch.setattr(type(program), "lacks", lambda _program: None)
    monkeypatch.setattr(bench, "run_fresh", lambda *_: small)
    rows = bench.run_one(program)
    assert [row["peak_allocated_bytes"]["bare"] for row in rows] == [[1 << 20]] * len(rows)
    assert all(row["equal"] for row in rows)
    changed = iter([small, large, small])
    monkeypatch.setattr(bench, "run_fresh", lambda *_: next(changed))
    (row,) = bench.run_one(program)
    assert (row["peak_allocated_bytes"], row["equal"]) == ({"bare": [1 << 20] * 2, "recorded": 2 << 20}, False)


def test_a_program_that_the_runner_cannot_judge_is_a_row_that_is_not_equal(bench: ModuleType) -> None:
    (program,) = bench.find_programs("cuda", "streams/side")
    row = bench.failed(program, KeyError("status"))
    assert not row["equal"]
    assert row["faults"] == ["the runner failed: KeyError: 'status'"]
    assert bench.count([row])["faulty"] == 1
