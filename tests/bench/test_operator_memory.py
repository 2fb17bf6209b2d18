"""Temporary memory of operators in an estimate, against what an H200 had (bench/estimate/operator_memory.py)."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from folders import BENCH

pytest.importorskip("torch")
import torch

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
FILE = BENCH / "estimate" / "results" / "h200" / "operator_memory.json"

FIRST = """
    mse float32; mse bfloat16; smooth_l1 float32; huber bfloat16; bce logits float32; logsumexp bfloat16
    logsigmoid float32
    mean dims float32; mean hw channels_last bfloat16; adaptive avg 1 channels_last float32; amax float32
    max dim bfloat16
    scale channels channels_last float32; topk 8 bfloat16; topk 200 float32; topk ints float32; sort ints float32
    gather float32; index rows of table float32; index_select bfloat16; index pick float32; index_put accumulate float32
    boolean mask float32; masked_select bfloat16; masked put float32; multinomial float32; multinomial replace float32
    randperm float32; median all float32; quantile float32; embedding_bag float32; group_norm channels_last bfloat16
    adaptive max channels_last float32; bicubic channels_last float32; bilinear antialias channels_last float32
    pixel_shuffle channels_last float32; reflect pad channels_last float32; replicate pad channels_last bfloat16
    rfft float32; irfft float32; fft shift float32; complex mul float32; cdist float32; cdist 1 float32; vdot float32
    affine_grid float32; slogdet 512x512; det 64x64; inv 512x512; solve 512x512; eigh 256x8x8; qr 64x64
    matrix_exp 512x512
    lstsq 256x8x8; attention 80 bfloat16; attention 32 float32; attention grouped bfloat16; autocast softmax; ctc
    ctc cpu lengths; multi margin bfloat16
"""
THIRD = """
    columns float32; columns last bfloat16; columns and back float32; channels softmax last float32
    loss of pixels last bfloat16; distance of all float32; mean of rows float32; attend plainly bfloat16
    attend plainly with mask bfloat16; attend by hand float32; swiglu bfloat16; product of rows float32; lstm cell
    cross product; rotary halves float32; 1x1 convolution last bfloat16
"""
FOURTH = """
    different of 150000; different of 6000000; different bytes of 6000000; different with places of 150000
    different with places of 6000000; runs of 6000000; order of 6000000 bytes; largest half of few float32
    mean and variance of rows float32; deviation and mean of all float16; pairs by 1; counts of nonzeros
    places of 2500000; unsorted of few float32
"""
SECOND = """
    bce; bce weighted float32; max of pictures last float32; norm over channels float32; sort vocabulary float32
    sort many long rows; sort mid rows; attend short bfloat16; attend one key bfloat16; under autocast cumsum bfloat16
    under autocast group norm bfloat16; under autocast loss bfloat16; bag max; bag offsets; positive count float32
    group norm affine last bfloat16; reflect 3 last float32; rfft 997; eigh 64x32x32; least squares
"""


def names_of(text: str) -> list[str]:
    return [name.strip() for line in text.split("\n") for name in line.split(";") if name.strip()]


SETS = {"first": FIRST, "second": SECOND, "third": THIRD, "fourth": FOURTH}
CASES = [(group, name) for group, names in SETS.items() for name in names_of(names)]


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    places = [str(BENCH / "estimate"), str(BENCH / "lib")]
    sys.path[:0] = places
    try:
        gc.freeze()  # each measurement collects garbage
        yield importlib.import_module("operator_memory")
    finally:
        gc.unfreeze()
        for place in places:
            sys.path.remove(place)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in (FILE, *(FILE.with_stem(f"{FILE.stem}_{name}") for name in ("third", "fourth"))):
        found |= json.loads(file.read_text(encoding="utf-8"))["sets"]
    return found


@pytest.mark.parametrize(("group", "name"), CASES, ids=[f"{name}-{group}" for group, name in CASES])
def test_an_operator_needs_what_it_needed_on_a_gpu(
    bench: ModuleType, measured: dict[str, Any], group: str, name: str
) -> None:
    make, call = bench.SETS[group].cases[name]
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda sentence: None):
        torch.manual_seed(0)
        found = bench.measure(make, call)
    truth = measured[group]["rows"][name]["measured"]
    assert bench.differences(truth, found) == []
    if "channels_last" in name or " last " in name:
        assert found["layouts"] == truth["layouts"]


def test_most_operators_of_the_file_are_good(bench: ModuleType, measured: dict[str, Any]) -> None:
    """The figures of the page are those of the rows."""
    for group in measured.values():
        for column, summary in group["summary"].items():
            assert bench.summary(group["rows"], column) == summary
