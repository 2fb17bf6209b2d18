"""The drop-in memory profiler: what the older tool printed, what it could not, and what cannot be."""

from __future__ import annotations

import csv
import gc
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from drop_in import ACTIVATION, BATCH, WEIGHTS, WIDTH, installed, make_step, reports_of, two_layers
from torch import nn

import gpuledger
from gpuledger import memory_profiler
from gpuledger.errors import UsageError

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gc.collect()  # what another test left over is alive, too


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
    names: dict[str, Any] = {"two_layers": two_layers, "make_step": make_step}
    exec(program, names)
    assert repr(names["profiler"]) == "<MemoryProfiler of Sequential: epoch 3, iteration 0>"
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
    assert last["context_bytes"] == ""  # there is no GPU: not known, and not 0


def test_two_profilers_of_one_second_have_a_file_each() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    profilers = [memory_profiler(model, print_period=1, csv=True) for model in (first, second)]
    for model, profiler in zip((first, second), profilers, strict=True):
        model(torch.ones(1, 2)).sum().backward()
        profiler.record_stats()
    files = list(Path("memory_csv_data").glob("*.csv"))
    assert [len(place.read_text(encoding="utf-8").splitlines()) for place in files] == [2, 2]


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
    with pytest.raises(UsageError, match=r"print_period .*: expected a whole number of 1 or more"):
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
    with pytest.raises(UsageError, match="was not called"):
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
    assert "Iteration 1 of Epoch 1: not recorded, another recording is active in this process" in out
    assert "Memory Usage for Iteration 2 of Epoch 1: not recorded" in out
    step()
    profiler.record_stats()
    assert profiler.last is not None
    assert profiler.last.iteration == 3


def test_an_error_of_ours_is_said_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuledger.collect.attribution.tensor_observations import TensorObservations

    monkeypatch.delenv("GPULEDGER_DEBUG", raising=False)
    bare, model = installed(), two_layers()
    step = make_step(model)
    profiler = memory_profiler(model)
    with monkeypatch.context() as broken:
        broken.setattr(TensorObservations, "see_gradients", lambda _self: 1 / 0)
        step()
        profiler.record_stats()
        assert "not recorded, an internal error of gpuledger: ZeroDivisionError" in capsys.readouterr().out
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


def test_the_csv_of_a_real_training_reads_back_to_the_report(tmp_path: Path) -> None:
    model = two_layers()
    step = make_step(model)
    profiler = memory_profiler(model, csv=True)
    for _ in range(3):
        step()
        profiler.record_stats()
    (path,) = (tmp_path / "memory_csv_data").iterdir()
    report = profiler.last
    assert report is not None
    run = gpuledger.diff(path, path, step=3).main.after
    (device,) = report.devices
    breakdown = run.breakdown
    assert breakdown is not None
    assert (breakdown.allocated_bytes, breakdown.instant.step) == (device.allocated_bytes, 3)
    assert breakdown.instant.device_idx == device.device_idx == -1
    found: dict[str, int] = {}
    for account in breakdown.accounts:
        found[account.category] = found.get(account.category, 0) + account.bytes
    expected: dict[str, int] = {}
    for name, size in device.at_peak:
        category = name.removesuffix(" of other modules")
        expected[category] = expected.get(category, 0) + size
    assert found == expected


def test_other_is_at_most_5_percent_of_a_transformer_and_the_lines_sum_to_the_peak() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.Embedding(500, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 500))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        words = torch.randint(0, 500, (8, 32))
        nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    (device,) = reports_of(model, step)[-1].devices
    sizes = dict(device.at_peak)
    assert sum(sizes.values()) == device.allocated_bytes
    assert sizes.get("other", 0) <= 0.05 * device.allocated_bytes
