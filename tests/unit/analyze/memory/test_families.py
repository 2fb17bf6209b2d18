"""Repeated modules have a name that says which modules they are."""

from __future__ import annotations

import pytest

from gpuledger.analyze.memory.families import _name


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
