"""What other people's code may rely on."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import gpuledger
import gpuledger.integrations
import gpuledger.ops

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpuledger"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")])
PACKAGES = (gpuledger, gpuledger.ops, gpuledger.integrations)
ERRORS = {
    "BudgetExceededError",
    "EmptyRunError",
    "GpuLedgerError",
    "InputError",
    "NoDeviceError",
    "UsageError",
}
VALUES = {
    "Advice",
    "Balance",
    "Breakdown",
    "Diff",
    "EnergyBreakdown",
    "Estimate",
    "Gate",
    "Rank",
    "RanksEstimate",
    "Recording",
    "Run",
    "Search",
    "StepTimes",
    "Watch",
    "WorldSearch",
}
CALLS = {
    "MemoryProfiler",
    "advise",
    "balance",
    "breakdown",
    "check",
    "diff",
    "estimate",
    "estimate_ranks",
    "fake_output",
    "find_batch",
    "find_world_size",
    "load",
    "memory_profiler",
    "merge",
    "flight_recorder",
    "record",
    "scope",
    "step",
    "step_energy",
    "step_times",
    "watch",
}
PUBLIC = {*ERRORS, *VALUES, *CALLS, "__version__"}
REQUIRED = ("Args:", "Raises:", "Source:", "Example:")
BY_EXTENSION = {"lightning", "transformers"}
"""Modules of integrations that need their library on import, and so cannot be part of the package's own names."""


def test_public_names_are_these() -> None:
    assert set(gpuledger.__all__) == PUBLIC
    assert set(dir(gpuledger)) >= PUBLIC


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_type_checker_sees_the_names_that_are_imported(package: ModuleType) -> None:
    """What is read under TYPE_CHECKING comes from the modules that the names are imported from when used."""
    tree = ast.parse(inspect.getsource(package))
    seen = {
        alias.asname or alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = package._MODULES
    assert seen == modules
    assert {*modules, "__version__"} == {*package.__all__, "__version__"}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_public_callables_say_what_they_return(name: str) -> None:
    found = getattr(gpuledger, name)
    assert callable(found)
    assert found.__doc__
    assert found.__doc__.startswith("Mark " if name == "step" else "Return ")
    assert doctest.DocTestParser().get_examples(found.__doc__), "an example"


@pytest.mark.parametrize("name", sorted({*ERRORS, *VALUES}))
def test_public_classes_are_documented(name: str) -> None:
    assert inspect.isclass(getattr(gpuledger, name))
    assert getattr(gpuledger, name).__doc__


@pytest.mark.parametrize("name", sorted(name for name in CALLS if isinstance(getattr(gpuledger, name), FunctionType)))
def test_public_functions_tell_arguments_errors_and_source(name: str) -> None:
    if name in ("fake_output", "load", "step"):  # a name, one path, and nothing; the first and last raise nothing
        return
    text = inspect.getdoc(getattr(gpuledger, name)) or ""
    assert [section for section in REQUIRED if section not in text] == []
    parameters = set(inspect.signature(getattr(gpuledger, name)).parameters)
    assert {one for one in parameters if not re.search(rf"^    {one}: ", text, re.MULTILINE)} == set()


def signatures() -> list[tuple[str, Callable[..., object]]]:
    """Return every function that is public: of the package, and of the classes that are."""
    found: list[tuple[str, Callable[..., object]]] = []
    for name in sorted(PUBLIC - {"__version__"}):
        value = getattr(gpuledger, name)
        if not inspect.isclass(value):
            found.append((name, value))
            continue
        members = inspect.getmembers_static(value)
        methods = [(key, one.fget if isinstance(one, property) else one) for key, one in members]
        found += [
            (f"{name}.{key}", method)
            for key, method in methods
            if isinstance(method, FunctionType) and not key.startswith("_")
        ]
    return found


@pytest.mark.parametrize(("name", "function"), signatures(), ids=[name for name, _ in signatures()])
def test_no_public_signature_says_any(name: str, function: Callable[..., object]) -> None:
    signature = inspect.signature(function)
    written = [signature.return_annotation, *(one.annotation for one in signature.parameters.values())]
    assert not [text for text in written if re.search(r"\bAny\b", str(text))]
    assert not [one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]


def test_the_reference_holds_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = [f"{package.__name__}.{name}" for package in PACKAGES for name in package.__all__ if name != "__version__"]
    assert [name for name in names if not re.search(rf"{re.escape(name)}(?![\w.])", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_public_names_only(page: Path) -> None:
    allowed = {package.__name__ for package in PACKAGES} | {f"gpuledger.integrations.{one}" for one in BY_EXTENSION}
    text = page.read_text(encoding="utf-8")
    modules = re.findall(r"^\s*(?:>>> )?(?:from|import) (gpuledger[\w.]*)", text, re.MULTILINE)
    assert [module for module in modules if module not in allowed] == []


def test_no_import_goes_round_the_contracts() -> None:
    """`importlib` hides an import from the linter: modules of ours are imported with it by tables of names alone."""
    tables = {"_lazy.py", "cli/main.py", "formats/readers.py"}
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "import_module" not in text and "__import__" not in text:
            continue  # nothing below would be found in it
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                loaded = ast.unparse(node.args[0])
                if "gpuledger" in loaded or not isinstance(node.args[0], ast.Constant):
                    found.add((path.relative_to(SOURCE).as_posix(), loaded))
    others = {(place, loaded) for place, loaded in found if place not in tables}
    # Libraries that the user names: a model's, a logger's, and that of an operator of an extension.
    assert others == {
        ("ops/workloads/models.py", "model.library"),
        ("integrations/scalars.py", "module"),
        ("simulate/gpu/hints.py", "module"),
    }


def test_only_packages_with_public_names_load_them_when_asked() -> None:
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    found = {place for place, text in texts.items() if "_lazy import" in text}
    assert found == {"__init__.py", "ops/__init__.py", "integrations/__init__.py"}


def test_nothing_below_the_command_line_needs_a_command() -> None:
    """What bench and services do is in services: a command parses and prints. The whole command line may be run."""
    inner = re.compile(r"gpuledger\.cli(?!\.main import main\b)")
    places = [*(ROOT / "bench").rglob("*.py"), *(SOURCE / "services").rglob("*.py")]
    assert [path.name for path in places if inner.search(path.read_text(encoding="utf-8"))] == []


def test_the_version_is_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", gpuledger.__version__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'profile'"):
        getattr(gpuledger, "profile")  # noqa: B009  a type checker refuses the name itself
