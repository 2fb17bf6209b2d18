"""The drop-in memory profiler: the older tool's output, and right numbers where that one's were wrong.

The tests of the second half each hold one defect of the older tool, seen in it by running it.
"""

from __future__ import annotations

import csv
import gc
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger import memory_profiler  # noqa: E402
from gpuledger.errors import UsageError  # noqa: E402
from gpuledger.integrations.memory_table import MemoryReport  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, BATCH = 1000, 64
WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * 4
ACTIVATION = BATCH * WIDTH * 4


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gc.collect()  # what another test left over is alive, too


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def make_step(model: nn.Module, *, set_to_none: bool = True, **shapes: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        loss = first_tensor(model(torch.randn(BATCH, WIDTH))).sum()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()

    return step


def first_tensor(result: Any) -> Any:
    while not isinstance(result, torch.Tensor):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def reports_of(model: nn.Module, step: Callable[[], None], iterations: int = 3) -> list[MemoryReport]:
    profiler = memory_profiler(model)
    found = []
    for _ in range(iterations):
        step()
        profiler.record_stats()
        assert profiler.last is not None
        found.append(profiler.last)
    return found


def tables(text: str) -> list[list[str]]:
    """Return the printed tables, line by line, from their heads on."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("Memory Usage")]
    return [lines[begin:end] for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True)]


# -- what the older tool printed ------------------------------------------------------------------------------------


def test_the_four_lines_of_the_readme_with_only_the_import_changed(capsys: pytest.CaptureFixture[str]) -> None:
    program = """
from gpuledger import memory_profiler
def main():
    model = two_layers()
    step = make_step(model)
    global profiler
    profiler = memory_profiler(model, print_period=2, csv=True)
    for epoch in range(2):
        for batch_index in range(5):
            step()
            profiler.record_stats()
        profiler.epoch_end()
main()
"""
    names = {"two_layers": two_layers, "make_step": make_step}
    exec(program, names)
    out = capsys.readouterr().out
    heads = [line for line in out.splitlines() if line.startswith(("Memory", "Epoch"))]
    assert heads == [
        "Memory Usage for Iteration 2 of Epoch 1",
        "Memory Usage for Iteration 4 of Epoch 1",
        "Epoch 1 finished",
        "Memory Usage for Iteration 2 of Epoch 2",
        "Memory Usage for Iteration 4 of Epoch 2",
        "Epoch 2 finished",
    ]
    assert re.match(r"Logging data in \./memory_csv_data/\d{14}\.csv\n", out)
    names["profiler"].epoch_end()


def test_the_table_has_the_older_tool_s_lines_and_widths_and_a_block_that_sums(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = two_layers()
    report = reports_of(model, make_step(model), 2)[-1]
    out = capsys.readouterr().out
    assert out.startswith(
        "\n" + "*" * 43 + "\nMemory Usage for Iteration 1 of Epoch 1\n" + "*" * 43 + "\nPeak cached..."
    )
    (device,) = report.devices
    table = tables(out)[-1]
    assert table[2:18] == [
        f"{'Peak cached':.<45s}{round(device.peak_cached_bytes / 1e6):.>5d} MB",
        f"{'Current cached':.<45s}{round(device.current_cached_bytes / 1e6):.>5d} MB",
        f"{'Total feature map usage':.<45s}{1:.>5d} MB",
        "",
        f"{'Total layer weight usage':.<45s}{8:.>5d} MB",
        *(f"  {name:.<43s}{size:.>5d} MB" for name, size in zip(("0.weight", "0.bias"), (4, 0), strict=True)),
        *(f"  {name:.<43s}{size:.>5d} MB" for name, size in zip(("2.weight", "2.bias"), (4, 0), strict=True)),
        "",
        f"{'Total layer weight gradient usage':.<45s}{8:.>5d} MB",
        *(f"  {name + ' grad':.<43s}{size:.>5d} MB" for name, size in zip(("0.weight", "0.bias"), (4, 0), strict=True)),
        *(f"  {name + ' grad':.<43s}{size:.>5d} MB" for name, size in zip(("2.weight", "2.bias"), (4, 0), strict=True)),
        f"{'Intermediate gradients':.<45s}{1:.>5d} MB",
    ]
    title, *block = table[19:]
    assert title.startswith("At the iteration's peak....")
    printed = [int(line.removesuffix(" MB").rpartition(".")[2]) for line in [title, *block]]
    assert sum(printed[1:]) == printed[0] == round(device.allocated_bytes / 1e6)
    assert device.allocated_bytes >= 3 * WEIGHTS + 3 * ACTIVATION
    assert sum(size for _, size in device.at_peak) == device.allocated_bytes == device.peak_cached_bytes


def test_the_csv_has_the_older_tool_s_columns_first_and_the_new_ones_after() -> None:
    model = two_layers()
    step = make_step(model)
    profiler = memory_profiler(model, print_period=2, csv=True)
    for _ in range(4):
        step()
        profiler.record_stats()
    profiler.epoch_end()
    (path,) = Path("memory_csv_data").glob("*.csv")
    text = path.read_text(encoding="utf-8")
    old = (
        "epoch,iteration,peak_cached,current_cached,total_feature_map_usage,total_weight_usage,"
        "0.weight,0.bias,2.weight,2.bias,total_layer_weight_gradient_usage,"
        "0.weight_grad,0.bias_grad,2.weight_grad,2.bias_grad,intermediate_gradients,"
    )
    assert text.startswith(old + "optimizer_state_bytes,buffer_bytes,temporary_bytes,allocated_bytes,fragmented_bytes,")
    rows = text.splitlines()[1:]
    cells = [row.split(",") for row in rows]
    assert [row[:2] + row[4:16] for row in cells] == [
        ["1", "2", *"1840408404", "0", "1"],
        ["1", "4", *"1840408404", "0", "1"],
    ]
    last = dict(zip(*csv.reader([text.splitlines()[0], rows[-1]]), strict=True))
    assert profiler.last is not None
    (device,) = profiler.last.devices
    assert int(last["peak_cached"]) == round(device.peak_cached_bytes / 1e6)
    assert int(last["allocated_bytes"]) == device.allocated_bytes
    assert int(last["optimizer_state_bytes"]) == device.optimizer_state_bytes >= WEIGHTS
    assert (last["0.bias_bytes"], last["0.bias_grad_bytes"]) == ("4000", "4000")
    assert last["context_bytes"] == ""  # there is no card: not known, and not 0


def test_two_profilers_of_one_second_have_a_file_each() -> None:
    first, second = (memory_profiler(nn.Linear(2, 2), print_period=9, csv=True) for _ in range(2))
    assert len(list(Path("memory_csv_data").glob("*.csv"))) == 2
    assert first._csv is not None
    assert second._csv is not None


# -- the older tool's defects ---------------------------------------------------------------------------------------


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
        return tensor

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


def hooks_of(model: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found = [dict(getattr(module, kind)) for module in model.modules() for kind in kinds]
    return [*found, *(parameter._post_accumulate_grad_hooks for parameter in model.parameters())]


def installed() -> tuple[Any, ...]:
    return (
        nn.Module.__call__,
        torch.autograd.backward,
        torch.autograd.grad,
        dict(_global_optimizer_pre_hooks),
        dict(_global_optimizer_post_hooks),
        torch._C._len_torch_dispatch_stack(),
    )


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


# -- more than the older tool could ----------------------------------------------------------------------------------


def test_adam_s_state_and_buffers_have_lines() -> None:
    other = nn.Linear(1, 1)
    (before,) = reports_of(other, lambda: other(torch.ones(1, 1)).sum().backward(), 1)[0].devices
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    profiler = memory_profiler(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(BATCH, WIDTH)).sum().backward()
        optimizer.step()
        profiler.record_stats()
    assert profiler.last is not None
    (device,) = profiler.last.devices
    states = sum(
        value.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    assert device.optimizer_state_bytes == before.optimizer_state_bytes + states
    assert device.buffer_bytes == before.buffer_bytes + 2 * WIDTH * 4 + 8
    assert dict(device.at_peak)["optimizer_state"] == device.optimizer_state_bytes


def test_other_modules_weights_are_told_apart() -> None:
    model, teacher = two_layers(), nn.Linear(WIDTH, 2 * WIDTH)
    (report,) = reports_of(model, make_step(model), 1)
    at_peak = dict(report.devices[0].at_peak)
    assert at_peak["weight"] == report.weight_bytes == WEIGHTS
    assert at_peak["weight of other modules"] >= sum(p.numel() for p in teacher.parameters()) * 4


def test_an_optimizer_inside_backward_shows_every_gradient() -> None:
    model, handles = two_layers(), []
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def update(tensor: torch.Tensor, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        handles.append(parameter.register_post_accumulate_grad_hook(update))
    profiler = memory_profiler(model)
    for _ in range(2):
        model(torch.randn(BATCH, WIDTH)).sum().backward()
        profiler.record_stats()
    for handle in handles:
        handle.remove()  # a cycle that the garbage collector does not see through
    assert profiler.last is not None
    assert dict(profiler.last.gradients) == dict(profiler.last.weights)
    assert 0 < profiler.last.gradient_bytes < WEIGHTS


def test_sparse_gradients_are_gradients() -> None:
    model = nn.Embedding(5000, WIDTH, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    profiler = memory_profiler(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(BATCH)).square().sum().backward()
        optimizer.step()
        profiler.record_stats()
    report = profiler.last
    assert report is not None
    assert dict(report.gradients) == {"weight": ACTIVATION + BATCH * 8}
    assert report.gradient_bytes == ACTIVATION + BATCH * 8
    assert report.devices[0].intermediate_gradient_bytes < 2 * ACTIVATION


def test_the_evaluation_between_two_epochs_belongs_to_no_iteration() -> None:
    model = two_layers()
    step = make_step(model)
    profiler = memory_profiler(model)
    peaks = []
    for _ in range(2):
        step()
        profiler.record_stats()
        peaks.append(profiler.last.devices[0].allocated_bytes if profiler.last else 0)
        profiler.epoch_end()
        with torch.no_grad():
            model(torch.randn(100 * BATCH, WIDTH))
    assert abs(peaks[1] - peaks[0]) < 10 * ACTIVATION


def test_inference_alone_is_reported_too() -> None:
    model = two_layers()
    profiler = memory_profiler(model)
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(BATCH, WIDTH))
            profiler.record_stats()
            profiler.epoch_end()
    assert profiler.last is not None
    assert (profiler.last.epoch, profiler.last.gradient_bytes) == (2, 0)


def test_names_reach_the_table_and_the_csv_whatever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name = 'with, comma "quote" ü' + "x" * 60
    model = nn.ModuleDict({name: nn.Linear(3, 2)})
    profiler = memory_profiler(model, csv=True)
    model[name](torch.ones(1, 3)).sum().backward()
    profiler.record_stats()
    (path,) = Path("memory_csv_data").glob("*.csv")
    header, row = csv.reader(path.read_text(encoding="utf-8").splitlines())
    assert len(header) == len(row)
    assert f"{name}.weight_grad" in header
    assert f"  {name}.weight" in capsys.readouterr().out


# -- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("print_period", [0, -1, 2.5, "3", None])
def test_a_print_period_is_a_whole_number_from_1_on(print_period: Any) -> None:
    bare = installed()
    with pytest.raises(UsageError, match=r"print_period .*: must be a whole number, 1 or more"):
        memory_profiler(nn.Linear(2, 2), print_period=print_period)
    assert installed() == bare


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="ReLU has no parameters"):
        memory_profiler(nn.ReLU())


@pytest.mark.parametrize("model", [None, two_layers, "model"])
def test_what_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module"):
        memory_profiler(model)


def test_a_model_on_no_device_is_refused() -> None:
    with pytest.raises(UsageError, match="the model is on meta"):
        memory_profiler(nn.Linear(2, 2, device="meta"))


def test_record_stats_before_any_iteration_is_refused() -> None:
    bare = installed()
    profiler = memory_profiler(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="has not been called"):
        profiler.record_stats()
    assert installed() == bare


def test_a_file_in_the_place_of_the_directory_is_said() -> None:
    Path("memory_csv_data").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="memory_csv_data: cannot be written"):
        memory_profiler(nn.Linear(2, 2), csv=True)


def test_another_recording_under_way_goes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = two_layers()
    step = make_step(model)
    with gpuledger.record(out=tmp_path / "run", devices="cpu"):
        profiler = memory_profiler(model)
        step()
        profiler.record_stats()
    step()
    profiler.record_stats()
    out = capsys.readouterr().out
    assert "Iteration 1 of Epoch 1: not recorded, another recording is under way in this process" in out
    assert "Memory Usage for Iteration 2 of Epoch 1: not recorded" in out
    step()
    profiler.record_stats()
    assert profiler.last is not None
    assert profiler.last.iteration == 3


def test_an_error_of_ours_is_said_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuledger.collect.identities import Sightings

    monkeypatch.delenv("GPULEDGER_DEBUG", raising=False)
    bare, model = installed(), two_layers()
    step = make_step(model)
    profiler = memory_profiler(model)
    with monkeypatch.context() as broken:
        broken.setattr(Sightings, "see_gradients", lambda _self: 1 / 0)
        step()
        profiler.record_stats()
        assert "not recorded, an error of gpuledger's own: ZeroDivisionError" in capsys.readouterr().out
    for _ in range(2):
        step()
        profiler.record_stats()
    assert profiler.last is not None
    profiler.epoch_end()
    del profiler
    assert installed() == bare


def test_the_name_loads_torch_only_when_asked_for() -> None:
    import subprocess

    code = (
        "import sys, gpuledger; print('torch' in sys.modules); gpuledger.memory_profiler; print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "True"]
