"""Watts by FLOPs and bytes: what a trace tells of shapes becomes work, and more work never takes fewer watts."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import weakref
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from folders import ROOT
from hypothesis import given
from hypothesis import strategies as st
from traced import Trace

from gpuledger.analyze.operator_work.power_model import (
    NARROW,
    TF32,
    PowerModel,
    model_from,
    model_to_json,
    share_of_limit,
)
from gpuledger.analyze.posting.activities import own_spans
from gpuledger.analyze.posting.launched_work import work_of_call
from gpuledger.collect.adapter.kineto_events import inputs_of
from gpuledger.model.accounts import SPAN_KINDS
from gpuledger.model.journal.reading import journal_of, read_journal
from gpuledger.ops.predict.power import find_power_model
from gpuledger.simulate.catalogue import catalogue, find_card

FLOAT = "float"


def model() -> PowerModel:
    found = find_power_model("NVIDIA H200")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fit_power_model", ROOT / "tools" / "fit_power_model.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    yield sys.modules[spec.name]
    del sys.modules[spec.name]


@given(
    flops=st.floats(0, 1e16),
    moved_bytes=st.floats(0, 1e13),
    more=st.floats(1, 10),
    seconds=st.floats(1e-6, 10),
    numbers=st.sampled_from(["float32", TF32, "bfloat16", "float16", "int64", ""]),
    product=st.booleans(),
)
def test_more_work_in_the_same_time_never_takes_fewer_watts(
    flops: float, moved_bytes: float, more: float, seconds: float, numbers: str, product: bool
) -> None:
    of = model()
    works = np.array([(flops, moved_bytes), (flops * more, moved_bytes), (flops, moved_bytes * more)]).T
    watts = of.watts_of(works[0], works[1], np.full(3, seconds), numbers, product=product)
    assert watts is not None
    levels = of.levels_of(watts)
    assert (watts >= 0).all()
    assert (watts <= of.most_w * (1 + 1e-9)).all()
    assert (watts[1:] >= watts[0]).all()
    assert (levels[1:] >= levels[0]).all()
    assert (np.abs(of.levels_w[levels] - watts) <= of.most_w / 100).all()


def test_every_card_of_the_catalogue_is_told_by_its_own_peaks_and_others_not_at_all() -> None:
    for card in catalogue().values():
        found = find_power_model(card.name)
        assert found is not None
        assert found.limit_w == card.power_limit_w
        assert 0 < found.product_w < 1.2 * found.limit_w
        assert model_from(json.loads(json.dumps(model_to_json(found)))) == found
    assert find_power_model("NVIDIA Other") is None
    one = np.ones(1)
    assert model().watts_of(one, one, one, "float64", product=True) is None
    assert replace(model(), flop_per_s={"float32": 1e12}).watts_of(one, one, one, "bfloat16", product=True) is None


def test_what_ships_is_nearer_than_the_weights_and_tells_what_the_fit_did(maker: ModuleType) -> None:
    shipped = json.loads(maker.TABLE.read_text(encoding="utf-8"))
    of = model().coefficients
    assert of.off_by < shipped["assumed_weights_off_by"] - 0.03
    assert of.low_frac < 1 < of.high_frac
    database = maker.measured_in(maker.read_parquet(maker.DATABASE, is_ours=True), find_card(maker.CARD))
    told = maker.told_by(np.array(list(asdict(of).values()))[:7], database)
    assert maker.off_by(told, database) < of.off_by
    for cores, used in (("float32", database.plain), (TF32, database.tf32), ("bfloat16", database.narrow)):
        for product in (False, True):
            rows = (used > 0) & (database.is_product == product)
            by_run = share_of_limit(of, used[rows], database.moved[rows], cores, product=product)
            assert by_run == pytest.approx(told[rows], abs=1e-6)


def a_profile(call: Any) -> dict[str, Any]:
    """Return Kineto's events of a call by their names, with shapes."""
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as profiled:
        call()
    results = profiled.kineto_results
    assert results is not None
    return {event.name(): event for event in results.events()}


def test_what_kineto_tells_of_inputs_is_an_operators_work() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    left, right = torch.randn(5, 6), torch.randn(6, 7)

    def call() -> None:
        torch.conv2d(image, weight, stride=2).sum().backward()
        left @ right
        left.bfloat16() + 1
        torch._foreach_mul([left, right], 2.0)
        torch.cat([left, left])
        left[torch.tensor([0, 1])]

    with FlopCounterMode(display=False) as counter:
        call()
    counted = counter.get_flop_counts()["Global"]
    events = a_profile(call)

    def told(name: str, listed: str = "") -> Any:
        inputs = inputs_of(events[name])
        assert inputs is not None
        return work_of_call(name, json.loads(json.dumps(inputs)), listed)

    for name in ("mm", "convolution", "convolution_backward"):
        work, numbers = told(f"aten::{name}")
        assert (work.flops, numbers) == (counted[getattr(torch.ops.aten, name)], "float32")
    assert told("aten::mm")[0].bytes == 4 * (5 * 6 + 6 * 7 + 5 * 7)
    assert told("aten::add")[1] == "bfloat16"
    assert told("aten::_foreach_mul") is None, "nothing tells the kind of number in a list"
    assert told("aten::_foreach_mul", "float32")[0].flops == 5 * 6 + 6 * 7
    assert told("aten::cat", "float32")[0].bytes == 2 * 4 * 2 * 5 * 6
    assert told("aten::index") is None, "nothing tells the tensors of an index"
    assert work_of_call("mine::mm", inputs_of(events["aten::mm"]) or [], "") is None


def test_nothing_is_kept_of_the_programs_tensors_while_shapes_are_recorded() -> None:
    class Memory(np.ndarray[Any, Any]):
        pass

    memory = np.ones(1000, dtype=np.float32).view(Memory)
    gone = weakref.ref(memory)
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True):
        tensor = torch.from_numpy(memory)
        tensor + tensor.reshape(10, 100).sum()
        del tensor, memory
        gc.collect()
        assert gone() is None


PRODUCT = [[[4, 8], [8, 2]], None, [FLOAT, FLOAT], [None, None]]
CONVOLUTION = [
    [[1, 2, 5, 5], [3, 2, 3, 3], [], [], [], [], [], [], []],
    None,
    [FLOAT, FLOAT, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
    [None, None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
]


def test_an_operators_work_is_shared_among_its_kernels_by_their_time() -> None:
    trace = Trace()
    product = trace.host("aten::mm", 0, 10, inputs=PRODUCT)
    trace.device("a gemm", 10, 40, product)
    trace.device("a reduction", 40, 50, product)
    outer = trace.host("aten::convolution", 10, 30, inputs=CONVOLUTION)
    inner = trace.host("aten::cudnn_convolution", 12, 28, inputs=[[[9]], None, [FLOAT], [None]])
    trace.device("sm80_xmma_fprop_implicit_gemm_tf32f32", 60, 70, inner)
    trace.device("mine", 70, 80, trace.host("mine::op", 30, 40, inputs=PRODUCT))
    work = trace.owned().work
    assert outer != inner
    flops, moved_bytes = 2 * 4 * 8 * 2, 4 * (4 * 8 + 8 * 2 + 4 * 2)
    assert work.flops[:2] == pytest.approx([0.75 * flops, 0.25 * flops])
    assert work.moved_bytes[:2] == pytest.approx([0.75 * moved_bytes, 0.25 * moved_bytes])
    assert work.flops[2] == 2 * 3 * 3 * 3 * 2 * 9
    assert np.isnan(work.flops[3])
    assert work.numbers.tolist() == ["float32", "float32", TF32, ""]


def test_steps_of_kernels_alone_have_the_work_of_their_likes_and_old_journals_none() -> None:
    trace = Trace()
    trace.device("a gemm", 10, 40, trace.host("aten::mm", 0, 10, inputs=PRODUCT))
    trace.device("a gemm", 1010, 1020, 0)
    trace.later_steps = [(5, 1000, 2000)]
    trace.part.facts["kernels_alone"] = {"from_step": 5, "from_ns": 1000}
    work = trace.owned().work
    assert work.flops.tolist() == [128, 128]
    journal = journal_of([trace.part])
    journal.tables["activities"]["inputs_id"] = np.zeros(0, dtype=np.int32)
    spans = own_spans(journal)
    assert spans is not None
    assert np.isnan(spans.work.flops).all()


def test_a_resnets_training_has_the_flops_of_its_layers() -> None:
    """ResNet-50, 32 images on an H200 (bench/energy/time_energy.py, torch 2.11): two steps, one of kernels alone."""
    journal = read_journal(ROOT / "tests" / "recordings" / "shapes" / "resnet50-training")
    spans = own_spans(journal)
    assert spans is not None
    names = journal.facts["activity_names"]
    operators = np.array([names[number] if number >= 0 else "" for number in spans.operator_id.tolist()])
    is_product = np.isin(
        operators, ["aten::cudnn_convolution", "aten::convolution_backward", "aten::addmm", "aten::mm"]
    )
    forward, first_layer = 32 * 2 * 4_089_184_256, 32 * 2 * 112 * 112 * 64 * 3 * 7 * 7
    step_flops = 3 * forward - first_layer  # images need no gradient
    for of_step in (spans.launched_ns >= 0, spans.launched_ns < 0):
        assert np.nansum(spans.work.flops[is_product & of_step]) == pytest.approx(step_flops, rel=1e-3)
    duration_ns = (spans.end_ns - spans.start_ns).astype(float)
    is_kernel = spans.kind == SPAN_KINDS.index("kernel")
    known = ~np.isnan(spans.work.flops)
    assert duration_ns[is_kernel & known].sum() > 0.97 * duration_ns[is_kernel].sum(), "all but lists of tensors"
    assert set(spans.work.numbers[is_product].tolist()) == {"float32", TF32}


def test_narrow_numbers_are_those_whose_products_have_a_peak_of_their_own() -> None:
    assert set(NARROW) <= set(find_card("NVIDIA H200").peak_tflop_s) | {"float8_e5m2"}
