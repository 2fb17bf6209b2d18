"""Each package says what is in it, what may import it, and where to begin reading; the linter's contracts decide."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import ROOT

PACKAGE = ROOT / "src" / "gpuledger"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LONG = 6
"""Of more packages, those are named that may not import one, if they are fewer."""


def packages() -> Iterator[str]:
    """Yield each package of ours by its name below ``gpuledger``."""
    for place in sorted(PACKAGE.rglob("__init__.py")):
        name = ".".join(place.parent.relative_to(PACKAGE).parts)
        if name:
            yield name


def layers_of(name: str) -> list[list[str]]:
    """Return the layers, the highest first, among which a contract places a package; none if no contract does."""
    container, _, own = f"gpuledger.{name}".rpartition(".")
    for contract in CONTRACTS:
        if contract["type"] == "layers" and container in contract["containers"]:
            layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
            folder = PACKAGE.joinpath(*container.split(".")[1:])
            found = [[one for one in layer if (folder / one).is_dir()] for layer in layers]
            if any(own in layer for layer in found):
                return found
    return []


def is_forbidden(source: str, target: str) -> bool:
    """Return whether a contract forbids the import of one package in another."""
    return any(
        contract["type"] == "forbidden"
        and f"gpuledger.{source}" in contract["source_modules"]
        and f"gpuledger.{target}" in contract["forbidden_modules"]
        for contract in CONTRACTS
    )


def importers_of(name: str) -> str:
    """Return the sentence on which packages may import one."""
    container, _, own = name.rpartition(".")
    layers = layers_of(name)
    if not layers:
        return f"Whatever may import ``{container}`` may import it."
    place = next(number for number, layer in enumerate(layers) if own in layer)
    of = f" of ``{container}``" if container else ""
    prefix = f"{container}." if container else ""
    above = [one for layer in layers[:place] for one in layer if not is_forbidden(f"{prefix}{one}", name)]
    others = [one for layer in layers for one in layer if one != own and one not in above]
    if not above:
        return f"No other package{of} imports it."
    if not others:
        return f"Every other package{of} may import it."
    if len(above) > LONG and len(others) < len(above):
        return f"Every other package{of} but {listed(others, 'and')} may import it."
    return f"{listed(above, 'and')} may import it."


def listed(names: list[str], word: str) -> str:
    """Return names as a list in a sentence."""
    quoted = [f"``{name}``" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def docstring_of(name: str) -> str:
    """Return the docstring of a package."""
    text = Path(PACKAGE, *name.split("."), "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


@pytest.mark.parametrize("name", list(packages()))
def test_a_package_says_what_may_import_it_and_where_to_begin(name: str) -> None:
    words = " ".join(docstring_of(name).split())
    assert importers_of(name) in words
    assert re.search(r"(Start reading at|Begin with|Begin there)", words)


def test_a_contract_decides_what_may_import_a_package() -> None:
    assert importers_of("cli") == "No other package imports it."
    assert importers_of("files") == "Every other package may import it."
    assert importers_of("services") == "``cli``, ``live`` and ``integrations`` may import it."
    assert "``report``" not in importers_of("cards").partition(" but ")[0]  # forbidden beside the layers
    assert importers_of("model.journal") == "Whatever may import ``model`` may import it."
