"""The float32 rate that a GPU sustains: limited by its lanes, or by its power."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ops.predict.roof import roof_of_card
from gpuledger.ops.predict.sustained import NARROW_FRAC, WIDE, sustained_frac
from gpuledger.simulate.catalogue import catalogue, find_card


@pytest.mark.parametrize(
    ("name", "frac"),
    [("h200", WIDE[1]), ("h100-80gb", WIDE[1]), ("a100-80gb", NARROW_FRAC), ("v100-32gb", NARROW_FRAC)],
)
def test_a_gpu_with_enough_power_is_limited_by_its_lanes(name: str, frac: float) -> None:
    assert sustained_frac(find_card(name)) == frac


@pytest.mark.parametrize("name", ["l4", "t4", "a10"])
def test_a_gpu_with_little_power_is_limited_by_it_and_twice_the_power_is_twice_the_rate(name: str) -> None:
    card = find_card(name)
    frac = sustained_frac(card)
    assert frac < 0.6
    doubled = sustained_frac(replace(card, power_limit_w=2 * card.power_limit_w))
    assert doubled == pytest.approx(min(2 * frac, WIDE[1] if card.compute_capability >= WIDE[0] else NARROW_FRAC))


def test_every_gpu_of_the_catalogue_has_a_share_and_other_dtypes_keep_their_peak() -> None:
    for card in catalogue().values():
        rates = roof_of_card(card).flop_per_ns
        assert 0.2 < sustained_frac(card) < 1.0, card.name
        assert rates["float32"] == pytest.approx(card.peak_tflop_s["float32"] * 1e3 * sustained_frac(card))
        assert all(rates[name] == peak * 1e3 for name, peak in card.peak_tflop_s.items() if name != "float32")
