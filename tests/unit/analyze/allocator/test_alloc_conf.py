"""Settings of PyTorch's allocator as a text."""

from __future__ import annotations

import pytest

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES, parse_alloc_conf
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import UsageError


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("8", {20: 8, 27: 8, 35: 8}),
        ("[>:8]", {20: 8, 27: 8, 35: 8}),
        ("[256:2,>:8]", {20: 2, 28: 2, 29: 8, 35: 8}),
        ("[1:2,4:8]", {20: 2, 21: 0, 22: 8, 23: 0, 35: 0}),
        ("[2:2,>:8]", {20: 2, 21: 2, 22: 8, 35: 8}),
        ("[256:2,1024:4]", {20: 2, 28: 2, 29: 0, 30: 4, 31: 0, 35: 0}),
        ("[16384:2,>:3]", {33: 2, 34: 2, 35: 3}),
        ("[32768:3]", {20: 3, 34: 3, 35: 3}),
        ("[1048576:3]", {20: 3, 34: 3, 35: 3}),  # the last class is of all larger ones too
        ("[1000:2]", {28: 2, 29: 2, 30: 0}),
    ],
)
def test_each_size_class_has_its_divisions(text: str, divisions: dict[int, int]) -> None:
    """By the power of two of the class; the first one given is of all smaller ones, ``>`` of all that follow."""
    found = dict(parse_alloc_conf(f"roundup_power2_divisions:{text}").power2_divisions)
    assert list(found) == [1 << power for power in range(20, 36)]
    assert {power: found[1 << power] for power in divisions} == divisions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AllocatorSettings()),
        (" expandable_segments : True ", AllocatorSettings(expandable=True)),
        ("max_split_size_mb:21", AllocatorSettings(max_split_bytes=21 << 20)),
        ("expandable_segments:True,,max_split_size_mb:64,", AllocatorSettings((), 64 << 20, expandable=True)),
        ("expandable_segments:True,expandable_segments:False", AllocatorSettings()),
        ("backend:native,garbage_collection_threshold:0.8,pinned_use_cuda_host_register:True", AllocatorSettings()),
        (
            "roundup_power2_divisions:[1:2,>:4],max_split_size_mb:64",
            AllocatorSettings(((1 << 20, 2), *((1 << power, 4) for power in range(21, 36))), 64 << 20),
        ),
    ],
)
def test_each_setting_has_its_effect_in_the_order_given(text: str, expected: AllocatorSettings) -> None:
    assert parse_alloc_conf(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_split_size_mb:20", "max_split_size_mb:20: expected a whole number of 21 or more"),
        ("max_split_size_mb:-64", "expected a whole number of 21"),
        ("roundup_power2_divisions:0", "expected a whole number of 1 or more"),
        ("roundup_power2_divisions:[0:1]", "expected a whole number of 1 or more"),
        ("roundup_power2_divisions:[1:0]", "expected a whole number of 1 or more"),
        ("expandable_segments", "expandable_segments: expected NAME:VALUE"),
        ("expandable_segments:true", "expected True or False"),
        ("backend:cudaMallocAsync", "only the native allocator"),
        ("speed:1", "speed: unknown setting"),
    ],
)
def test_a_setting_that_torch_would_not_take_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_alloc_conf(text)
    assert str(caught.value).startswith("--alloc-conf ")


def test_the_settings_to_try_differ_and_the_first_is_the_default() -> None:
    found = [parse_alloc_conf(text) for text in CANDIDATES]
    assert found[0] == AllocatorSettings()
    assert len(set(found)) == len(CANDIDATES)
