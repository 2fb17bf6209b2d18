"""Settings of PyTorch's allocator as a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES, alloc_conf_text, parse_alloc_conf
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


DEFAULTS: dict[str, object] = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "expandable_segments": False,
    "garbage_collection_threshold": 0.0,
    "max_split_size": -1,
    "pinned_num_register_threads": 1,
    "pinned_use_cuda_host_register": False,
    "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
}
"""What torch 2.11 has in a snapshot."""


def recorded(text: str) -> dict[str, object]:
    """Return the settings of a text as a snapshot has them."""
    settings = parse_alloc_conf(text)
    return {
        **DEFAULTS,
        "expandable_segments": settings.expandable,
        "max_split_size": settings.max_split_bytes or -1,
        "roundup_power2_divisions": {str(size >> 20): number for size, number in settings.power2_divisions},
    }


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:True,max_split_size_mb:128",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[256:2,>:8]",
        "roundup_power2_divisions:[1:2,4:8]",
    ],
)
def test_recorded_settings_are_written_as_users_write_them(text: str) -> None:
    assert alloc_conf_text(recorded(text)) == text


def test_defaults_are_not_listed() -> None:
    assert alloc_conf_text(DEFAULTS) == alloc_conf_text({}) == "default"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=16))
def test_divisions_are_read_back_as_they_were(numbers: list[int]) -> None:
    divisions = {str(1 << power): number for power, number in enumerate(numbers)}
    text = alloc_conf_text({"roundup_power2_divisions": divisions})
    found = parse_alloc_conf(text).power2_divisions
    assert [number for _, number in found][: len(numbers)] == numbers
