"""Repeated modules have a name that says which modules they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import make_run

from gpuledger.analyze.memory.families import _name, find_families
from gpuledger.model.imported import rows_to_table
from gpuledger.model.run import read_run, write_table


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["layers.0", "layers.1", "layers.2", "layers.3"], "layers.* (4)"),
        (["layer1", "layer2", "layer3", "layer4"], "layer* (4)"),
        (["attn.q", "attn.k", "attn.v", "attn.o"], "attn.* (4)"),
        (["1", "2", "3", "4"], "4 × Block"),
        (["stem", "body", "neck", "tail"], "4 × Block"),
    ],
)
def test_children_of_the_outermost_module_without_a_common_name_have_their_class(paths: list[str], name: str) -> None:
    assert _name(paths, "Block") == name


def test_lists_of_modules_beside_each_other_are_no_layers(tmp_path: Path) -> None:
    """Such as encoder, decoder, links and heads of a network. A list is not called, so it cannot be checkpointed."""
    rank = read_run(make_run(tmp_path / "a.ledger", blocks=20)).rank()
    lists = ("enc", "dec", "up", "heads")
    paths = ["", *lists, *(f"enc.{number}" for number in range(4))]
    modules = [
        {
            "module_id": number,
            "parent_id": None if not path else paths.index(path.rpartition(".")[0]),
            "path": path,
            "class_name": "ModuleList" if path in lists else "Sequential",
        }
        for number, path in enumerate(paths)
    ]
    first = rank.table("modules").to_pylist()[0]
    rows = [first | module for module in modules]
    write_table(rank.directory, rows_to_table("modules", rows), "modules")
    (family,) = find_families(read_run(tmp_path / "a.ledger").rank())
    assert (family.name, family.class_name, family.count) == ("enc.* (4)", "Sequential", 4)
