"""Equal modules of several layers in one row."""

from __future__ import annotations

import pytest

from gpuledger.analyze.memory.groups import combine_layers

BLOCKS = {f"blocks.{n}": "Block" for n in range(3)}
PARTS = {f"blocks.{n}.mlp.{k}": kind for n in range(3) for k, kind in enumerate(("Linear", "GELU", "Linear"))}


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (BLOCKS, ["3 × blocks.*"]),
        (PARTS, [f"3 × blocks.*.mlp.{k} ({kind})" for k, kind in enumerate(("Linear", "GELU", "Linear"))]),
        ({"net.0": "Linear", "net.1": "ReLU"}, ["net.0 (Linear)", "net.1 (ReLU)"]),
        ({"net.0": "", "net.1": ""}, ["net.0", "net.1"]),
        ({"heads.0": "Linear", "head": "Linear"}, ["heads.0 (Linear)", "head"]),
        ({"0": "Linear", "1": "Linear"}, ["0 (Linear)", "1 (Linear)"]),
        ({"(outside modules)": ""}, ["(outside modules)"]),
    ],
)
def test_layers_of_one_class_are_combined(classes: dict[str, str], labels: list[str]) -> None:
    sizes = {path: 1 << number for number, path in enumerate(classes)}
    combined = combine_layers(sizes, classes)
    assert list(combined) == labels
    assert sum(combined.values()) == sum(sizes.values())
