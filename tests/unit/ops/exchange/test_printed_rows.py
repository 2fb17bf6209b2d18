"""Rows that ml-operator-profiling printed: read as its scripts write them, added up, and held beside whole models."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

from click.testing import CliRunner, Result
from present import present

from gpuledger.cli.main import main
from gpuledger.ops.database.contents import contents_of
from gpuledger.ops.database.operator_database import open_existing
from gpuledger.ops.database.records import Record
from gpuledger.ops.database.whole_models import WholeModel, whole_models
from gpuledger.ops.exchange.printed_lines import (
    CUT,
    ERROR,
    NO_FIGURES,
    OTHER,
    SUM,
    WARNING,
    figures_of,
    hardware_named,
    parse_lines,
)
from gpuledger.ops.predict.choose import open_environment_records
from gpuledger.ops.workloads.captures import CapturedDevice, asked_for, capture_model, capture_step, device_named
from gpuledger.ops.workloads.workload import Use, Workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

pytestmark = pytest.mark.torch
DATA = Path(__file__).parents[3] / "data" / "operator_energy"
TABLE, TRAINED = DATA / "finalbench_A30.txt", DATA / "operations_A30_no_tc_train.txt"
CONVOLUTION = (
    "Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False) (32, 3, 32, 32) "
    "4.9735599475901805e-05 4.795864740121037 0.002355356321078426 0.06774386814458334 336050 16.7136482038768 "
    "96.42720286190094 1.0269891259419743 322.3300691835349 4.553065377997446 6.064573724148192e-05 "
    "2024-11-16_20-26-42 2024-11-16_20-27-02 4.6149126776564534e-07"
)


def ops(*words: object) -> Result:
    return CliRunner().invoke(main, ["ops", *map(str, words)])


def import_rows(folder: Path, *files: Path, gpu: str = "NVIDIA A30", more: tuple[str, ...] = ()) -> tuple[str, Result]:
    database = str(folder / "a30.db")
    words = ("import", "printed-rows", *files, "--gpu", gpu, "--database", database, "-o", folder, *more)
    return database, ops(*words)


@pytest.fixture(scope="module")
def resnets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workload]:
    """Both ResNets, as `ops capture --gpu h200` writes them."""
    asked = (("resnet34", "32x3x56x56"), ("resnet50", "32x3x224x224"))
    made = [capture_model(asked_for(WorkloadSpec(f"resnets:{name}", inputs=size)), "h200") for name, size in asked]
    named = [
        replace(one, settings={**one.settings, "model": f"torchvision:{name}"})
        for one, (name, _) in zip(made, asked, strict=True)
    ]
    return {name: one for one, (name, _) in zip(named, asked, strict=True)}


def written(folder: Path, workload: Workload) -> str:
    workload.write(folder / workload.file_name)
    return str(folder / workload.file_name)


# -- inference --------------------------------------------------------------------------------------------------------


def test_rows_add_up_to_models_as_worked_out_by_hand(tmp_path: Path, resnets: dict[str, Workload]) -> None:
    database, result = import_rows(tmp_path, TABLE)
    assert result.stdout == "71 records of 71 operators on NVIDIA A30, from 71 rows\n"
    paths = [written(tmp_path, workload) for workload in resnets.values()]
    small, large = json.loads(ops("sum", *paths, "--database", database, "--json").stdout)
    assert small["time_ns"] == pytest.approx(4.5689e6, rel=1e-4)
    assert small["energy_j"] == pytest.approx(422.57e-3, rel=1e-4)
    assert large["time_ns"] == pytest.approx(21.442e6, rel=1e-4)
    assert large["energy_j"] == pytest.approx(3.4125, rel=1e-4)
    assert "5 operators (36 calls) measured in training mode" in small["notes"]
    assert 0 < small["half_interval_ns"] < 0.02 * small["time_ns"]
    text = ops("sum", paths[0], "--database", database).stdout
    assert text.startswith("resnet34-inference-32x3x56x56 on NVIDIA A30: no total, because less than 95 % of the calls")
    assert "; this part: 4.57 ± " in text  # those tables have no additions


def test_layers_are_kept_as_they_were_measured_in_training_mode(tmp_path: Path) -> None:
    found = contents_of(import_rows(tmp_path, TABLE)[0])
    norms = [key for key in found.keys.values() if key.name == "cudnn_batch_norm"]
    assert norms
    assert all(key.arguments[5] is True and key.flags["grad"] for key in norms)
    convolutions = [key for key in found.keys.values() if key.name == "convolution"]
    assert all(key.flags["tf32"] for key in convolutions)
    assert not any(key.flags["tf32"] for key in found.keys.values() if key.name == "addmm")  # as torch's own default


def test_a_row_keeps_its_deviations_power_and_moment(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(CONVOLUTION)
    (record,) = contents_of(import_rows(tmp_path, tmp_path / "rows.txt")[0]).records
    assert record.time_median_ns == pytest.approx(49735.6, rel=1e-6)
    assert present(record.time_high_ns) - present(record.time_low_ns) == pytest.approx(2 * 1.96 * 461.49, rel=1e-4)
    assert present(record.energy_high_j) - present(record.energy_median_j) == pytest.approx(1.96 * 67.744e-6, rel=1e-4)
    assert record.blocks[0]["power_w"] == pytest.approx(96.427, rel=1e-4)
    assert record.measured_ns == 1_731_788_802_000_000_000


def test_rows_of_the_first_version_have_no_deviation_of_time_and_none_is_made_up(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(CONVOLUTION.rpartition(" ")[0])
    database, result = import_rows(tmp_path, tmp_path / "rows.txt")
    assert result.exit_code == 0, result.stderr
    (record,) = contents_of(database).records
    assert (record.time_low_ns, record.time_high_ns) == (None, None)
    key = next(iter(contents_of(database).keys.values()))
    path = written(tmp_path, Workload("one", "inference", (Use(key, 3),)))
    (document,) = json.loads(ops("sum", path, "--database", database, "--json").stdout)
    assert (document["time_ns"], document["half_interval_ns"]) == (pytest.approx(149206.8, rel=1e-5), None)
    assert "149.21 µs, 14.39 ± " in ops("sum", path, "--database", database).stdout


def test_what_a_script_could_not_work_out_is_not_known(tmp_path: Path) -> None:
    values = CONVOLUTION.split(" ")
    values[-13] = values[-11] = "nan"  # energy and its deviation
    no_time = CONVOLUTION.replace("4.9735599475901805e-05", "nan")
    (tmp_path / "rows.txt").write_text(f"{' '.join(values)}\n{no_time}\n")
    database, result = import_rows(tmp_path, tmp_path / "rows.txt")
    (record,) = contents_of(database).records
    assert (record.energy_median_j, record.energy_low_j) == (None, None)
    assert "not read: 1 line: its time is no number" in result.stderr


# -- settings ---------------------------------------------------------------------------------------------------------


def test_tf32_is_as_the_files_tell_or_the_user(tmp_path: Path) -> None:
    saved = "Dataset saved to datasets_finalbench/dataset_history_A30_no_tc/dataset_20241116_211607.pt"
    cases: dict[str, tuple[str, str, tuple[str, ...], bool]] = {
        "by a line": ("rows.txt", f"{CONVOLUTION}\n{saved}\n", (), False),
        "by the file's name": ("operations_A30_no_tc.txt", CONVOLUTION, (), False),
        "by the option": ("rows.txt", CONVOLUTION, ("--tf32", "off"), False),
        "the option counts": ("A30_no_tc.txt", CONVOLUTION, ("--tf32", "on"), True),
        "by nothing": ("rows.txt", CONVOLUTION, (), True),
    }
    for case, (name, text, more, tf32) in cases.items():
        folder = tmp_path / case
        folder.mkdir()
        (folder / name).write_text(text)
        database, result = import_rows(folder, folder / name, more=more)
        found = contents_of(database)
        assert next(iter(found.keys.values())).flags["tf32"] is tf32, case
        assert next(iter(found.environments.values())).title == "NVIDIA A30" + ("" if tf32 else " without TF32"), case
        assert ("1 row: nothing says whether TF32 was on" in result.stderr) == (case == "by nothing"), case


def test_a_sum_of_rows_without_tf32_says_so(tmp_path: Path, resnets: dict[str, Workload]) -> None:
    database, _ = import_rows(tmp_path, TABLE, more=("--tf32", "off"))
    text = ops("sum", written(tmp_path, resnets["resnet34"]), "--database", database).stdout
    assert "on NVIDIA A30 without TF32: no total" in text
    assert "; this part: 4.57 ± " in text
    assert "note: 11 operators (36 calls) measured without TF32" in text


def test_a_clock_is_as_the_files_tell_and_names_the_records(tmp_path: Path, resnets: dict[str, Workload]) -> None:
    slow = tmp_path / "rows.txt"
    rows = TABLE.read_text().replace("dataset_history_A30/", "dataset_history_A30_900/")
    slow.write_text(rows.replace("e-05 ", "e-04 "))
    database, _ = import_rows(tmp_path, TABLE)
    import_rows(tmp_path, slow)
    titles = {one.title for one in contents_of(database).environments.values()}
    assert titles == {"NVIDIA A30", "NVIDIA A30 at 900 MHz"}
    path = written(tmp_path, resnets["resnet34"])
    (at_900,) = json.loads(ops("sum", path, "--database", database, "--gpu", "A30 at 900 MHz", "--json").stdout)
    assert at_900["environment"]["flags"]["clock_mhz"] == 900
    assert at_900["time_ns"] > 5e6
    (plain,) = json.loads(ops("sum", path, "--database", database, "--gpu", "A30", "--json").stdout)
    assert plain["time_ns"] == pytest.approx(4.5689e6, rel=1e-4)
    fitted = ops("fit", "--database", database, "--gpu", "A30 at 900 MHz")
    assert fitted.stdout.startswith("NVIDIA A30 at 900 MHz: time and energy of 71 measured operators")
    assert hardware_named("RTX2080TI_660_810").memory_clock_mhz == 810


def test_predictions_are_learned_from_rows(tmp_path: Path) -> None:
    database, _ = import_rows(tmp_path, TABLE)
    workload = capture_model(asked_for(WorkloadSpec("resnets:resnet34", inputs="8x3x96x96")), "h200")
    result = ops("predict", written(tmp_path, workload), "--database", database, "--gpu", "A30", "--json")
    (document,) = json.loads(result.stdout)
    assert document["gpu"] == "NVIDIA A30"
    assert document["time_low_ns"] < document["time_ns"] < document["time_high_ns"]
    assert 0.5e6 < document["time_ns"] < 20e6
    assert 0 < document["energy_j"] < 3


# -- training ---------------------------------------------------------------------------------------------------------


def parsed(path: Path) -> Any:
    return parse_lines(str(path), path.read_text().splitlines())


def test_rows_of_training_hold_evaluation_and_the_backward_pass(tmp_path: Path) -> None:
    rows, _ = parsed(TRAINED)
    database, result = import_rows(tmp_path, TRAINED)
    assert "on NVIDIA A30 without TF32, from 14 rows" in result.stdout
    assert "1 line: StochasticDepth: not a layer of torch.nn" in result.stderr
    found = contents_of(database)
    norms = [key for key in found.keys.values() if key.name == "cudnn_batch_norm"]
    assert all(key.arguments[5] is False and not key.flags["grad"] for key in norms)
    names = Counter(key.name for key in found.keys.values())
    assert names["convolution_backward"] == names["convolution"] == 2
    assert names["native_layer_norm_backward"] == 1
    taken = [row for row in rows if not row.what.startswith("StochasticDepth")]
    whole_s = sum(present(row.training).time_s for row in taken)
    assert sum(present(one.time_median_ns) for one in found.records) == pytest.approx(whole_s * 1e9)
    whole_mj = sum(present(present(row.training).energy_mj) for row in taken)
    assert sum(present(one.energy_median_j) for one in found.records) == pytest.approx(whole_mj / 1e3)


def test_a_training_step_adds_up_to_the_rows_of_training(tmp_path: Path) -> None:
    import torch

    rows, _ = parsed(TRAINED)
    (norm, *_) = [row for row in rows if row.what.startswith("BatchNorm2d")]
    with device_named("h200", lambda _: None) as place:
        workload = Workload("norm", "training", training_uses(place, norm.size, torch.nn.BatchNorm2d(norm.size[1])))
    database, _ = import_rows(tmp_path, TRAINED)
    (document,) = json.loads(ops("sum", written(tmp_path, workload), "--database", database, "--json").stdout)
    assert document["time_ns"] == pytest.approx(present(norm.training).time_s * 1e9)
    assert document["energy_j"] == pytest.approx(present(present(norm.training).energy_mj) / 1e3)
    assert any("in evaluation mode" in note for note in document["notes"])


def training_uses(place: CapturedDevice, size: tuple[int, ...], layer: Any) -> tuple[Use, ...]:
    import torch

    layer.to(place.device).train()
    images = torch.randn(size, device=place.device, requires_grad=True)
    gradient = torch.randn(size, device=place.device)
    tally = capture_step(lambda: layer(images).backward(gradient), place)
    return tuple(use for use in tally.uses if "batch_norm" in use.key.name)


def test_shares_of_a_backward_pass_are_no_examples(tmp_path: Path) -> None:
    database, _ = import_rows(tmp_path, TRAINED)
    shelf = open_environment_records(open_existing(database))
    shared = [one for one in shelf.records if str(one.method["value"]).startswith("share of")]
    assert {shelf.keys[one.key_digest].name for one in shared} >= {"mm", "sum"}
    assert len(shelf.examples) == len({one.key_digest for one in shelf.records} - {one.key_digest for one in shared})


# -- whole models -----------------------------------------------------------------------------------------------------


def models_in(folder: Path, *files: Path) -> dict[WholeModel, Record]:
    found = contents_of(import_rows(folder, *files)[0])
    return whole_models(found.records, found.keys)


@pytest.mark.parametrize(
    ("name", "time_ns", "energy_j"),
    [
        ("fullmodel_A30.txt", 3855626.3, 0.4034539),
        ("A30_fullmodel.txt", 3855626.3, 0.4034539),
        ("A30_full_model.txt", 3898819.5, 0.4086693),
    ],
)
def test_whole_models_are_read_in_every_form(name: str, time_ns: float, energy_j: float, tmp_path: Path) -> None:
    record = models_in(tmp_path, DATA / name)[WholeModel("torchvision:resnet34", (32, 3, 56, 56), "inference")]
    assert record.time_median_ns == pytest.approx(time_ns)
    assert record.energy_median_j == pytest.approx(energy_j)
    assert (record.time_low_ns is None) == (name == "A30_full_model.txt")


def test_the_newest_form_prints_milliseconds_below_square_brackets(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("resnet34 [32, 3, 56, 56]\n3.855626331182494\n403.4538874622257\n")
    (record,) = models_in(tmp_path, tmp_path / "x.txt").values()
    assert record.time_median_ns == pytest.approx(3855626.3)
    assert record.energy_median_j == pytest.approx(0.4034539)


def test_models_in_training_are_told_from_inference(tmp_path: Path) -> None:
    (model, *others) = models_in(tmp_path, DATA / "A30_fullmodel_train.txt").items()
    assert model[0] == WholeModel("torchvision:resnet34", (32, 3, 56, 56), "training")
    assert model[1].time_median_ns == pytest.approx(12782720.2)
    assert not others


def test_sums_stand_beside_recorded_whole_models(tmp_path: Path, resnets: dict[str, Workload]) -> None:
    database, _ = import_rows(tmp_path, TABLE, DATA / "fullmodel_A30.txt")
    paths = [written(tmp_path, workload) for workload in resnets.values()]
    document = json.loads(ops("compare", *paths, "--recorded", "--database", database, "--json").stdout)
    small, large = document["pairs"]
    assert small["time_frac"] == pytest.approx(4.5689 / 3.85563, rel=1e-4)
    assert large["time_frac"] == pytest.approx(21.442 / 21.3615, rel=1e-4)
    assert small["energy_frac"] == pytest.approx(422.57 / 403.454, rel=1e-4)
    assert large["energy_frac"] == pytest.approx(3412.5 / 3515.496, rel=1e-4)
    assert (small["throttled_blocks"], small["graph_ns"]) == (None, None)
    text = ops("compare", *paths, "--recorded", "--database", database).stdout
    assert text.startswith("NVIDIA A30, whole models as recorded\n")
    assert "energy: mean error 3.8 %" in text


def test_a_comparison_with_nothing_recorded_is_refused(tmp_path: Path, resnets: dict[str, Workload]) -> None:
    database, _ = import_rows(tmp_path, TABLE)
    result = ops("compare", written(tmp_path, resnets["resnet34"]), "--recorded", "--database", database)
    assert result.exit_code == 3
    assert "the database holds no whole model" in result.stderr
    import_rows(tmp_path, DATA / "A30_fullmodel_train.txt")
    result = ops("compare", written(tmp_path, resnets["resnet34"]), "--recorded", "--database", database)
    assert "resnet34-inference-32x3x56x56: the database holds no such whole model" in result.stderr
    assert ops("compare", "--database", database).exit_code == 2


# -- bad input --------------------------------------------------------------------------------------------------------


def test_what_is_not_read_is_counted_by_reason_and_listed(tmp_path: Path) -> None:
    database, result = import_rows(tmp_path, TABLE)
    assert result.exit_code == 3
    assert f"not read: 4 lines: {WARNING}: {TABLE}:1 and others" in result.stderr
    assert "not read: 1 line: StochasticDepth: not a layer of torch.nn" in result.stderr
    listed = tmp_path / "unread-lines.csv"
    assert f"list of unread lines: {listed}" in result.stderr
    with listed.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {row["file"] for row in rows} == {str(TABLE)}
    numbers = [int(row["line"]) for row in rows if row["reason"] == WARNING]
    lines = TABLE.read_text().splitlines()
    assert all("Warning" in lines[number - 1] or lines[number - 1].startswith("  return") for number in numbers)
    import_rows(tmp_path, TABLE)
    assert (tmp_path / "unread-lines-2.csv").exists()  # the first list stays
    assert len(contents_of(database).records) == 71


def reasons_of(text: str) -> dict[int, str]:
    return {one.line: one.reason for one in parse_lines("rows.txt", text.splitlines())[1]}


def test_two_tables_in_one_file_each_have_their_settings(tmp_path: Path) -> None:
    cut = CONVOLUTION[:150]
    saved = "Dataset saved to datasets_x/dataset_history_{}/dataset_20241116_211607.pt"
    lines = (CONVOLUTION, saved.format("A30_no_tc"), cut + CONVOLUTION, saved.format("A30"))
    text = "\n".join(lines)
    rows, unread = parse_lines("rows.txt", lines)
    assert [row.hardware.tf32 for row in rows] == [False, True]
    assert [(one.line, one.reason, one.text) for one in unread] == [(3, CUT, cut)]
    (tmp_path / "rows.txt").write_text(text)
    found = contents_of(import_rows(tmp_path, tmp_path / "rows.txt")[0])
    assert sorted(key.flags["tf32"] for key in found.keys.values()) == [False, True]


def test_rows_that_are_cut_are_named_and_no_figure_is_guessed() -> None:
    assert reasons_of(CONVOLUTION[:200]) == {1: CUT}
    assert reasons_of(CONVOLUTION.partition("(32, 3")[2]) == {1: OTHER}
    assert reasons_of(f"Linear(in_features=4, out_features=2, bias=True)\n{CONVOLUTION}") == {}
    assert reasons_of(f"{CONVOLUTION}\nLinear(in_features=4, out_features=2, bias=True)\n") == {2: NO_FIGURES}
    assert reasons_of("resnet34 (32, 3, 56, 56)\n0.0038556\n0.000028") == {1: CUT}
    sums = "4.56 [ms]\n0.02 [ms]\n422.5 [mJ]\n1.2 [mJ]"
    assert reasons_of(f"resnet34 (32, 3, 56, 56)\n{sums}") == dict.fromkeys((2, 3, 4, 5), SUM)
    trace = "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: no"
    assert reasons_of(f"convnext_base (32, 3, 384, 384)\n{trace}") == {1: NO_FIGURES, 2: ERROR, 3: ERROR, 4: ERROR}


def test_a_file_without_any_row_makes_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of the kind\n")
    database, result = import_rows(tmp_path, tmp_path / "notes.txt")
    assert result.exit_code == 3
    assert "notes.txt: no row could be read" in result.stderr
    assert not Path(database).exists()


def test_rows_without_a_date_are_kept_apart_and_read_twice_they_are_the_same(tmp_path: Path) -> None:
    files = DATA / "A30_fullmodel.txt", DATA / "A30_full_model.txt"
    import_rows(tmp_path, *files)
    database, _ = import_rows(tmp_path, *files)
    assert len(contents_of(database).records) == 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(32, 3, 32, 32)", f"({'9' * 5000}, 3)", CUT),
        ("(32, 3, 32, 32)", "(32, 4, 32, 32)", "Conv2d: "),
        ("Conv2d(3", f"Conv2d({'9' * 5000}", "not a printed layer"),
        (
            "Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)",
            "LSTM(3, 3, 999999999)",
            "LSTM",
        ),
        ("Conv2d(3, 64", "Conv2d(open('x'), 64", ""),
        ("Conv2d(3, 64", "Conv2d(3, 64, 3, (", ""),
        ("4.9735599475901805e-05", "1e300", "its time is no number"),
        ("4.9735599475901805e-05", "-1", "its time is no number"),
        ("2024-11-16_20-26-42", "yesterday", CUT),
    ],
)
def test_a_damaged_row_is_named_and_the_next_one_is_read(old: str, new: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(f"{CONVOLUTION.replace(old, new)}\n{CONVOLUTION}\n")
    database, result = import_rows(tmp_path, tmp_path / "rows.txt")
    assert result.exit_code == 3, result.output
    assert f"not read: 1 line: {reason}" in result.stderr
    assert len(contents_of(database).records) == 1


def test_a_layer_larger_than_this_machine_takes_no_memory(tmp_path: Path) -> None:
    tail = CONVOLUTION.partition("(32, 3, 32, 32)")[2]
    (tmp_path / "rows.txt").write_text(
        f"Linear(in_features=9000000, out_features=9000000, bias=True) (32, 9000000){tail}"
    )
    assert import_rows(tmp_path, tmp_path / "rows.txt")[1].stdout.startswith("1 record of 1 operator")


@pytest.mark.parametrize(("year", "is_read"), [("2024", True), ("0024", False), ("9024", False)])
def test_a_row_with_a_time_that_no_clock_tells_is_not_read(year: str, is_read: bool) -> None:
    dates = f"{year}-11-16_20-26-42 {year}-11-16_20-27-02"
    values = f"4.97e-05 4.79e-05 0.0023 0.067 336050 16.7 96.4 1.02 322.3 4.55 6.06e-05 {dates} 4.6e-07".split()
    assert (figures_of(values) is not None) == is_read
