"""Watts of operators by type: what ships is what the database holds, and whose database goes before whose."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import ROOT

from gpuledger.analyze.operator_work.measured_watts import numbers_of, table_from
from gpuledger.analyze.operator_work.power_model import LEVELS
from gpuledger.analyze.operator_work.work_class import CLASSES
from gpuledger.analyze.step.power_columns import columns_of
from gpuledger.analyze.step.work import StepWork
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import Contents, write_parquet
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.predict.power import find_power_model
from gpuledger.ops.predict.watts import find_watts, shipped, watts_of

CARD = Environment("NVIDIA H200", "1", "2.13.0", None)
OTHER = Environment("NVIDIA Other", "1", "2.13.0", None)


def measured(operator: str, watts: list[float], environment: Environment = CARD, time_ns: float = 1e5) -> Contents:
    """Return a database of one operator, whose records are that far above a base of 100 W."""
    keys = [OperatorKey(operator, ({"shape": [n + 1], "dtype": "float32", "stride": [1]},)) for n in range(len(watts))]
    records = [
        Record(
            key.digest,
            environment.digest,
            {"mode": "hot"},
            time_ns,
            energy_median_j=(100 + one) * time_ns / 1e9,
            base_w=100,
        )
        for key, one in zip(keys, watts, strict=True)
    ]
    return Contents({key.digest: key for key in keys}, {environment.digest: environment}, tuple(records))


def test_the_table_that_ships_is_that_of_the_database() -> None:
    spec = importlib.util.spec_from_file_location("make_measured_watts", ROOT / "tools" / "make_measured_watts.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.TABLE.read_text(encoding="utf-8") == maker.render(), "run tools/make_measured_watts.py"
    off_by = json.loads(maker.TABLE.read_text(encoding="utf-8"))["off_by"]
    assert off_by["other_records_of_the_type"] < 0.75 * off_by["assumed_weights"]
    assert off_by["others_by_flops_and_bytes"] < 0.75 * off_by["other_records_of_the_type"]


@pytest.mark.parametrize(("held_mhz", "there"), [((1980, 1950), True), ((1660, 1650, 1980), False), ((), True)])
def test_what_the_power_cap_slowed_while_its_joules_were_measured_is_left_out(
    held_mhz: tuple[int, ...], there: bool
) -> None:
    database = measured("aten.mm.default", [600.0] * 3)
    blocks = (
        {"kind": "summary", "burst_clock_mhz": 1980},
        *({"kind": "energy", "sm_clock_mhz": mhz} for mhz in held_mhz),
    )
    slowed = replace(database, records=tuple(replace(record, blocks=blocks) for record in database.records))
    assert (watts_of(slowed, "NVIDIA H200", "a database") is not None) == there


def test_watts_are_those_above_the_base_power_and_few_or_short_records_make_no_type() -> None:
    table = watts_of(measured("aten.mm.default", [300.0, 400.0, 500.0]), "NVIDIA H200", "a database")
    assert table is not None
    (one,) = table.types
    assert (one.operator, one.numbers, one.watts, one.records) == ("aten::mm", "float32", 400.0, 3)
    assert 300 <= one.low_w < one.watts < one.high_w <= 500
    assert table_from(json.loads(json.dumps(table.to_json()))) == table
    assert watts_of(measured("aten.mm.default", [300.0, 400.0]), "NVIDIA H200", "a database") is None
    assert watts_of(measured("aten.mm.default", [300.0] * 3, time_ns=5e3), "NVIDIA H200", "a database") is None


def test_a_types_watts_go_by_the_flops_and_bytes_of_a_call() -> None:
    """Of three products of one length the second has four times the FLOPs of the first, and more watts."""
    shapes = [[512, 512], [1024, 512], [2048, 1024]]
    keys = [
        OperatorKey("aten.mm.default", ({"shape": [m, k], "dtype": "float32"}, {"shape": [k, 512], "dtype": "float32"}))
        for m, k in shapes
    ]
    model = find_power_model("NVIDIA H200")
    assert model is not None
    works = np.array([(2.0 * m * k * 512, 4.0 * (m * k + k * 512 + m * 512)) for m, k in shapes]).T
    told_w = model.watts_of(works[0], works[1], np.full(3, 1e-4), "float32", product=True)
    assert told_w is not None
    records = [
        Record(key.digest, CARD.digest, {}, 1e5, energy_median_j=(100 + 1.2 * watts) * 1e-4, base_w=100)
        for key, watts in zip(keys, told_w.tolist(), strict=True)
    ]
    database = Contents({key.digest: key for key in keys}, {CARD.digest: CARD}, tuple(records))
    table = watts_of(database, "NVIDIA H200", "a database")
    assert table is not None
    assert table.types[0].of_model == pytest.approx(1.2)
    assert (table.low_frac, table.high_frac) == (1.0, 1.0)
    assert table_from(json.loads(json.dumps(table.to_json()))) == table
    ids = np.zeros(4, dtype=np.int64)
    words = {name: np.array([name] * 4, dtype=object) for name in ("kernel", "forward", "float32")}
    work = StepWork(
        0, 1, False, words["kernel"], words["forward"], ids, ids, ids + 1, ids, ids, ids, ids, ids + 100_000,
        np.append(works[0], np.nan), np.append(works[1], np.nan), words["float32"],
    )  # fmt: skip
    columns = columns_of(work, {0: "a gemm", 1: "aten::mm"}, table, model)
    assert columns[3] == len(CLASSES), "no FLOPs, the type's mean"
    levels = columns[:3] - len(CLASSES) - 1
    assert (levels < LEVELS).all(), "measured, not told by the model alone"
    assert model.levels_w[levels] == pytest.approx(1.2 * told_w, abs=model.most_w / LEVELS)
    assert (columns_of(work, {0: "a gemm", 1: "aten::bmm"}, table, model)[:3] >= len(CLASSES) + 1 + LEVELS).all()


def test_the_operator_is_the_one_that_launches_the_kernel() -> None:
    table = watts_of(measured("aten.convolution.default", [300.0] * 3), "NVIDIA H200", "a database")
    assert table is not None
    assert table.place_of("aten::cudnn_convolution", "float32") == 0
    assert table.place_of("aten::cudnn_convolution", "bfloat16") is None
    assert table.place_of("aten::mm", "float32") is None


@pytest.mark.parametrize(
    ("kernel", "numbers"),
    [
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>", "float32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8", "float32"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "bfloat16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "bfloat16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_TNT", "float16"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "float32"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::BFloat16>>", "bfloat16"),
        ("void my_kernel(int)", ""),
    ],
)
def test_numbers_are_told_by_the_kernels_name(kernel: str, numbers: str) -> None:
    assert numbers_of(kernel) == numbers


def test_the_users_own_database_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.parquet"
    write_parquet(measured("aten.mm.default", [300.0] * 3), own)
    found = find_watts("NVIDIA H200", {"GPULEDGER_DATABASE": str(own)})
    assert found is not None
    assert (found.source, found.types[0].watts) == ("your operator database", 300.0)
    write_parquet(measured("aten.mm.default", [300.0] * 3, OTHER), own)
    assert find_watts("NVIDIA H200", {"GPULEDGER_DATABASE": str(own)}) == shipped("NVIDIA H200")
    own.write_bytes(b"no database")
    assert find_watts("NVIDIA H200", {"GPULEDGER_DATABASE": str(own)}) == shipped("NVIDIA H200")
    assert find_watts("NVIDIA Other", {}) is None
