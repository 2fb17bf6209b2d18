"""The older PyTorch memory profiler's defects, each seen in it by running it, and right here."""

from __future__ import annotations

import csv
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from drop_in import ACTIVATION, BATCH, WEIGHTS, WIDTH, hooks_of, installed, make_step, reports_of, two_layers
from torch import nn

from gpuledger import memory_profiler

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gc.collect()  # what another test left over is alive, too


@pytest.mark.parametrize("set_to_none", [True, False])
def test_weight_gradients_are_there_from_the_first_iteration_and_do_not_grow(set_to_none: bool) -> None:
    """Was: 0 with ``set_to_none``; without, 0 and then half; "gradients" grew with every iteration."""
    model = two_layers()
    reports = reports_of(model, make_step(model, set_to_none=set_to_none), 4)
    assert [report.gradient_bytes for report in reports] == [WEIGHTS] * 4
    assert {sum(size for _, size in report.gradients) for report in reports} == {WEIGHTS}
    assert dict(reports[-1].gradients)["2.weight"] == WIDTH * WIDTH * 4
    intermediate = [report.devices[0].intermediate_gradient_bytes for report in reports]
    assert intermediate == [intermediate[0]] * 4
    assert ACTIVATION <= intermediate[0] < WIDTH * WIDTH * 4


def test_feature_maps_are_those_of_the_iteration() -> None:
    """Was: 0.77, then 1.54, then 2.30 MB, each iteration's added to those before."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter) and tensor.numel() == BATCH * WIDTH:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # a node that keeps its own output is never freed

    model = two_layers()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = model(torch.randn(BATCH, WIDTH))
    expected = sum(saved.values())
    del kept
    assert expected == 3 * ACTIVATION
    sizes = [report.devices[0].feature_map_bytes for report in reports_of(model, make_step(model), 4)]
    assert sizes == [sizes[0]] * 4
    assert expected <= sizes[0] <= expected + 8  # and the loss


class Returns(nn.Module):
    """Hands on what ``make`` makes of a layer's output."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.make = make

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> Any:
        return self.make(self.layer(x if scale is None else x * scale))


@pytest.mark.parametrize(
    "make",
    [
        lambda y: (y, None),
        lambda y: {"out": y, "none": None},
        lambda y: [(y, y.detach()), {"more": [y * 2]}],
    ],
    ids=["tuple", "dict", "nested"],
)
def test_modules_return_tuples_dicts_and_none(make: Callable[[Any], Any]) -> None:
    """Was: AttributeError, 'tuple' object has no attribute 'storage'."""
    model = Returns(make)
    (report,) = reports_of(model, make_step(model), 1)
    assert report.gradient_bytes == report.weight_bytes == WEIGHTS // 2


def test_an_lstm_s_flat_weights_are_counted_one_by_one() -> None:
    """Was: AttributeError for the tuple; and names that share memory took each other's place."""
    model = nn.LSTM(WIDTH, 16, 2)
    (report,) = reports_of(model, make_step(model), 1)
    expected = {name: parameter.numel() * 4 for name, parameter in model.named_parameters()}
    assert dict(report.weights) == dict(report.gradients) == expected
    assert report.weight_bytes == report.gradient_bytes == sum(expected.values())


def test_parameters_that_are_views_of_one_buffer_count_their_own_bytes() -> None:
    """Was: each of them counted the whole storage, and only one of them was listed."""
    model = two_layers()
    flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    place = 0
    for parameter in model.parameters():
        parameter.data = flat[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()
    (report,) = reports_of(model, make_step(model), 1)
    assert dict(report.weights) == {"0.weight": 4_000_000, "0.bias": 4000, "2.weight": 4_000_000, "2.bias": 4000}
    assert report.weight_bytes == WEIGHTS
    assert dict(report.devices[0].at_peak)["weight"] == WEIGHTS


@pytest.mark.parametrize("same_object", [True, False])
def test_tied_weights_are_counted_once(same_object: bool) -> None:
    """Was: a collision of their pointers."""
    model = two_layers()
    first, second = model[0], model[2]
    assert isinstance(first, nn.Linear)
    second.weight = first.weight if same_object else nn.Parameter(first.weight.data)
    (report,) = reports_of(model, make_step(model), 1)
    assert report.weight_bytes == WEIGHTS - WIDTH * WIDTH * 4
    assert dict(report.devices[0].at_peak)["weight"] == WEIGHTS - WIDTH * WIDTH * 4
    assert ("2.weight" in dict(report.weights)) is not same_object


def test_keyword_inputs_are_seen() -> None:
    """Was: only positional arguments were looked at."""
    model = Returns(lambda y: y)
    profiler = memory_profiler(model)
    x, scale = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    model(x, scale=scale).sum().backward()
    profiler.record_stats()
    assert profiler.last is not None
    assert dict(profiler.last.devices[0].at_peak)["input"] == 2 * ACTIVATION


def test_small_layers_are_there_in_bytes() -> None:
    """Was: "0 MB", and nothing else anywhere."""
    model = nn.Linear(3, 2)
    profiler = memory_profiler(model, csv=True)
    model(torch.ones(1, 3)).sum().backward()
    profiler.record_stats()
    (path,) = Path("memory_csv_data").glob("*.csv")
    header, row = csv.reader(path.read_text(encoding="utf-8").splitlines())
    cells = dict(zip(header, row, strict=True))
    assert (cells["weight"], cells["weight_bytes"], cells["bias_grad_bytes"]) == ("0", "24", "8")


def test_no_hook_is_left_and_iterations_that_are_not_reported_run_without_any() -> None:
    """Was: hooks on every module for good."""
    bare, model = installed(), two_layers()
    step = make_step(model)
    no_hooks = hooks_of(model)
    profiler = memory_profiler(model, print_period=3)
    seen = []
    for _ in range(6):
        seen.append(installed() == bare)
        step()
        profiler.record_stats()
        assert hooks_of(model) == no_hooks
    assert seen == [True, True, False, True, True, False]
    profiler.epoch_end()
    assert installed() == bare


def test_a_profiler_that_is_dropped_takes_everything_with_it() -> None:
    bare, model = installed(), two_layers()
    profiler = memory_profiler(model)
    assert installed() != bare
    del profiler
    assert installed() == bare
    profiler = memory_profiler(model)
    make_step(model)()
    assert installed() != bare
    del profiler
    assert installed() == bare


def test_a_profiler_keeps_nothing_alive() -> None:
    model = two_layers()
    step = make_step(model)
    profiler = memory_profiler(model)
    for _ in range(2):
        step()
        profiler.record_stats()
    gone = weakref.ref(model[0].weight)
    gc.collect()
    gc.disable()
    try:
        del model, step, profiler
        assert gone() is None
    finally:
        gc.enable()


def test_no_table_is_needed_for_the_csv_and_nothing_deprecated_is_called() -> None:
    """Was: deprecated calls; warnings are errors in this test run."""
    model = two_layers()
    assert len(reports_of(model, make_step(model), 2)) == 2
