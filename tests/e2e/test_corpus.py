"""A fixed third of the corpus: programs run recorded as they run bare. ``make corpus`` runs all of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from corpus_outcome import Zygote, run_fresh
from corpus_programs import FRESH_ONLY, KINDS, Program, find_programs, fixed_third
from run import run_program

PROGRAMS = find_programs()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.mark.torch
@pytest.mark.parametrize("program", fixed_third(PROGRAMS), ids=lambda program: program.name)
def test_a_program_runs_recorded_as_it_runs_bare(program: Program, zygote: Zygote) -> None:
    run = run_fresh if program.category in FRESH_ONLY else zygote.run
    records = run_program(program, run, way="test")
    assert [line for record in records for line in (*record.faults, *record.differences)] == []


def test_the_third_is_one_and_the_corpus_is_large() -> None:
    third = fixed_third(PROGRAMS)
    assert len(PROGRAMS) >= 200
    assert len({program.name for program in third}) == len(third) >= len(PROGRAMS) / 3
    assert len({program.category for program in third}) >= 15


def test_no_program_is_called_like_a_standard_module() -> None:
    names = {path.stem for directory in KINDS.values() for path in directory.glob("*/*.py")}
    assert names & sys.stdlib_module_names == set()  # its own directory comes first on sys.path


def test_common_loops_run_on_both_kinds_of_device() -> None:
    """On a GPU, bench/harm/corpus_cuda.py compares their memory peaks."""
    loops = [program for program in PROGRAMS if program.category == "loops"]
    assert len(loops) >= 20
    assert sum("cuda" in program.devices for program in loops) >= 10
