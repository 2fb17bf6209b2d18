"""How the source is built: sizes of folders and parameter lists, copies, cycles and code that nothing uses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from measure_house import find_unused, measure_source  # noqa: E402

MOST_REPEATED_WINDOWS = 17
"""Only ever lowered; 69 at the beginning."""
CALLED_BY_OTHERS = {
    "click": {"collect_usage_pieces", "convert", "format_commands", "get_command", "list_commands"},
    "ast.NodeTransformer": {"visit_AsyncFunctionDef", "visit_ClassDef", "visit_FunctionDef", "visit_Return"},
    "gpuledger.collect.adapter.calls.OutermostCalls": {"_enter", "_leave"},
    "PyTorch's dispatch modes": {"_should_skip_dynamo", "ignore_compile_internals"},
    "programs on a simulated GPU": {"record_event"},
    "programs with Triton on a simulated GPU": {
        "get_active_torch_device",
        "get_current_device",
        "get_current_stream",
        "get_current_target",
        "get_device_capability",
        "get_device_interface",
    },
    "pickle": {"persistent_id", "persistent_load"},
    "PyTorch's DistributedDataParallel": {"get_future"},
    "Lightning": {"on_exception", "on_train_batch_end", "on_train_end", "on_train_start"},
    "Transformers": {"on_step_end", "on_train_begin"},
    "pytest": {
        "pytest_addoption",
        "pytest_collection_modifyitems",
        "pytest_configure",
        "pytest_runtest_call",
        "pytest_runtest_setup",
        "pytest_terminal_summary",
    },
    "enum": {"_missing_"},
    "IPython": {"_repr_html_"},
    "our tests, of what is at work": {"current_path"},
}


@pytest.fixture(scope="module")
def figures(made_once: Callable[[str, Callable[[], str]], str]) -> dict[str, Any]:
    def measure() -> str:
        return json.dumps({**measure_source(ROOT / "src" / "gpuledger"), "unused": find_unused(ROOT)})

    found: dict[str, Any] = json.loads(made_once("house", measure))
    return found


def test_no_folder_holds_more_than_20_modules(figures: dict[str, Any]) -> None:
    assert figures["folders_over_20_modules"] == []


def test_no_file_has_more_than_400_lines(figures: dict[str, Any]) -> None:
    assert figures["files_over_400_lines"] == 0


def test_nothing_needs_pandas() -> None:
    """It is no dependency of ours, and the command line hides it from pyarrow."""
    package = ROOT / "src" / "gpuledger"
    names = re.compile(r"\.(to_pandas\w*|from_pandas)\(")
    assert [str(one) for one in package.rglob("*.py") if names.search(one.read_text(encoding="utf-8"))] == []


def test_tables_of_several_threads_are_copied_before_their_items_are_listed() -> None:
    """Python 3.11 can collect garbage while it lists items, and so let a finalizer or a thread change the table."""
    recording = ROOT / "src" / "gpuledger" / "collect"
    listed = re.compile(r"(list|tuple|set|sorted)\((self|sys)\.[\w.]+\.items\(\)\)")
    assert [str(one) for one in recording.rglob("*.py") if listed.search(one.read_text(encoding="utf-8"))] == []


def test_a_package_names_modules_to_start_with_that_it_has() -> None:
    missing = []
    for place in (ROOT / "src" / "gpuledger").rglob("__init__.py"):
        sentence = re.search(r"Start reading at (.*?)\.(?:\s|\"|$)", place.read_text(encoding="utf-8"), re.DOTALL)
        for name in re.findall(r"``(\w+)``", sentence[1] if sentence else ""):
            if not ((place.parent / f"{name}.py").exists() or (place.parent / name).is_dir()):
                missing.append(f"{place.parent.name}: {name}")
    assert missing == []


def test_each_class_has_a_name_of_its_own(figures: dict[str, Any]) -> None:
    """Users of two frameworks import a callback of the same name, each from the module of its framework."""
    names: dict[str, int] = figures["class_names"]
    assert [name for name, count in names.items() if count > 1] == ["GpuLedgerCallback"]
    assert not {"Book", "Line", "Place", "View"} & names.keys()


def test_no_modules_import_each_other_in_a_circle(figures: dict[str, Any]) -> None:
    assert figures["import_cycles"] == []


def test_parameter_lists_have_at_most_8_entries(figures: dict[str, Any]) -> None:
    assert figures["functions"]["most_parameters"] <= 8, figures["functions"]["too_wide"]


def test_hardly_any_six_lines_are_written_twice(figures: dict[str, Any]) -> None:
    assert figures["repeated"]["windows"] <= MOST_REPEATED_WINDOWS, figures["repeated"]["block_list"]


@pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="an sdist has no benchmarks, which use some names")
def test_everything_is_used_or_called_by_others(figures: dict[str, Any]) -> None:
    assert set(figures["unused"]) <= set().union(*CALLED_BY_OTHERS.values())


COPIED = """
def total(rows, limit):
    \"\"\"Return a sum.\"\"\"
    found = 0
    for row in rows:
        if row.size > limit:
            continue
        found += row.size
    return found
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Return a checkout with one of each thing that is measured."""
    package = tmp_path / "src" / "gpuledger"
    package.mkdir(parents=True)
    (package / "one.py").write_text(f"import gpuledger.two\n{COPIED}")
    renamed = COPIED.replace("total", "whole").replace("row", "thing").replace("found", "seen")
    wide = "def wide(self, a, b, c, d, /, e, f, *g, h, **i):\n    # a comment\n    return a  # no comment-only line\n"
    (package / "two.py").write_text(f"from gpuledger import one\n{renamed}\n{wide}\none.total, whole\n")
    (tmp_path / "README.md").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def test_what_is_planted_is_found(planted: Path) -> None:
    found = measure_source(planted / "src" / "gpuledger")
    assert found["repeated"]["windows"] == 2  # seven lines with the def, no docstring: two windows of six
    assert [block["first"] for block in found["repeated"]["block_list"]] == ["one.py:3"]
    assert [set(cycle) for cycle in found["import_cycles"]] == [{"gpuledger.one", "gpuledger.two"}]
    assert found["functions"]["too_wide"] == ["two.py:wide"]
    assert found["functions"]["most_parameters"] == 9
    assert found["comment_lines"] == 1
    assert found["folders"]["."] == {"modules": 2, "lines": found["lines"]}
    assert find_unused(planted) == ["wide"]


def test_a_private_name_is_not_used_by_another_modules_own(planted: Path) -> None:
    helper = "\n\ndef _helper():\n    pass\n"
    for name, text in (("three", helper), ("four", f"{helper}\n\n_helper()\n")):
        (planted / "src" / "gpuledger" / f"{name}.py").write_text(text)
    assert find_unused(planted) == ["_helper", "wide"]


def test_a_list_of_names_is_no_copy(tmp_path: Path) -> None:
    body = "def names():\n    return [\n" + "        first,\n" * 8 + "    ]\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"x = '{name}'\n\n\n{body}\n\nprint({name!r})\n")
    assert measure_source(tmp_path)["repeated"]["windows"] == 3  # the ends of the list, not its middle
