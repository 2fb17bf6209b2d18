"""Settings of PyTorch's allocator as a text."""

from __future__ import annotations

import pytest

from gpuledger.analyze.allocator.alloc_conf import parse_alloc_conf


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("8", {20: 8, 27: 8, 35: 8}),
        ("[>:8]", {20: 8, 27: 8, 35: 8}),
        ("[256:2,>:8]", {20: 2, 28: 2, 29: 8, 35: 8}),
        ("[1:2,4:8]", {20: 2, 21: 0, 22: 8, 23: 0, 35: 0}),
        ("[2:2,>:8]", {20: 2, 21: 2, 22: 8, 35: 8}),
        ("[256:2,1024:4]", {20: 2, 28: 2, 29: 0, 30: 4, 31: 0, 35: 0}),
    ],
)
def test_each_size_class_has_its_divisions(text: str, divisions: dict[int, int]) -> None:
    """By the power of two of the class; the first one given is of all smaller ones, ``>`` of all that follow."""
    found = dict(parse_alloc_conf(f"roundup_power2_divisions:{text}").power2_divisions)
    assert list(found) == [1 << power for power in range(20, 36)]
    assert {power: found[1 << power] for power in divisions} == divisions
