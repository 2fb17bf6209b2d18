"""tools/mutants.py: the defects that it plants are in the source as it is, and so are the tests that find them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from folders import ROOT, TOOLS


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("kept_mutants", TOOLS / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_defect_changes_one_place_of_a_module_and_names_tests_that_are_there(mutants: ModuleType) -> None:
    for mutant in mutants.MUTANTS:
        source = (ROOT / "src" / "gpuledger" / mutant.module).read_text(encoding="utf-8")
        assert source.count(mutant.old) == 1, mutant
        compile(source.replace(mutant.old, mutant.new), mutant.module, "exec")
        assert (ROOT / mutant.tests[0]).is_file(), mutant
