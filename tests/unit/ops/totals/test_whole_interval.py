"""The interval of a sum holds measured whole models that it was not made from."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest
from make_sum_errors import NAMES, PLACE, RESULTS, sum_errors

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.totals.sum import Sum, sum_up
from gpuledger.ops.totals.whole_interval import (
    HOST_EDGES,
    class_of_host,
    half_width_frac,
    interval_of_whole,
    pairs_like,
)
from gpuledger.ops.workloads.workload import Use, Workload

HERE = Environment("NVIDIA H200", "1", "2.13", "13", {"cache_bytes": 1000})
KEYS = [OperatorKey("aten.relu.default", ({"shape": [size], "dtype": "float32", "stride": [1]},)) for size in (1, 2)]


def total_of(host_frac: float | None, *, missing: int = 0, only: set[str] | None = None) -> Sum:
    block = {"kind": "summary", "host_ns": None if host_frac is None else host_frac * 1e6}
    record = Record(KEYS[0].digest, HERE.digest, {"mode": "rotating"}, 1e6, 1e6, 1e6, 0.1, 0.1, 0.1, blocks=(block,))
    uses = [Use(KEYS[0], 10), *([Use(KEYS[1], missing)] if missing else [])]
    return sum_up(Workload("w", "inference", tuple(uses)), [record], HERE, only=only)


@pytest.mark.parametrize(("whole", "sum_"), [("whole_ns", "sum_ns"), ("whole_j", "sum_j")])
def test_it_holds_nine_of_ten_models_whose_architecture_is_left_out(whole: str, sum_: str) -> None:
    pairs = [pair for name in NAMES for pair in json.loads((RESULTS / name).read_text())["pairs"] if pair["host_ns"]]
    found = [
        (
            pair["workload"].split("-")[0],
            pair["host_ns"] / max(pair["busy_ns"], pair["queued_ns"]),
            pair[whole] / pair[sum_],
        )
        for pair in pairs
        if pair[whole] and pair[sum_]
    ]
    held = []
    for name, host_frac, share in found:
        others = [
            one for other, host, one in found if other != name and class_of_host(host) == class_of_host(host_frac)
        ]
        half = half_width_frac(others)
        held.append(half is None or abs(share - 1) <= half)
    assert len(held) == 50
    assert fmean(held) >= 0.9


def test_the_file_is_that_of_the_results() -> None:
    assert PLACE.read_text(encoding="utf-8") == sum_errors()


@pytest.mark.parametrize("host_frac", [0.1, 0.6, 1.5])
def test_it_is_the_quantile_of_the_pairs_of_its_class(host_frac: float) -> None:
    total = total_of(host_frac)
    interval = interval_of_whole(total)
    pairs, source = pairs_like(host_frac)
    wide = half_width_frac([pair.time_frac for pair in pairs])
    assert interval is not None
    assert wide is not None
    assert (interval.pairs, interval.source) == (len(pairs), source)
    assert interval.time_half_ns == pytest.approx(wide * total.step_ns)
    assert sum(abs(pair.time_frac - 1) <= wide for pair in pairs) >= 0.9 * len(pairs)


def test_models_that_wait_for_the_cpu_have_a_wider_interval() -> None:
    halves = [half_width_frac([pair.time_frac for pair in pairs_like(frac)[0]]) for frac in (0.1, *HOST_EDGES)]
    assert [half for half in halves if half is not None] == sorted(half for half in halves if half is not None)


def test_a_part_of_a_model_and_a_cpu_have_none() -> None:
    assert interval_of_whole(total_of(None)) is None
    assert interval_of_whole(total_of(0.1, missing=1)) is None
    assert interval_of_whole(total_of(0.1, missing=1, only={KEYS[0].digest})) is None
    assert interval_of_whole(replace(total_of(0.1), host_ns=None)) is None


@pytest.mark.parametrize(("count", "rank"), [(8, None), (9, 9), (19, 18), (29, 27)])
def test_the_quantile_of_few_pairs_is_the_widest_or_unknown(count: int, rank: int | None) -> None:
    shares = [1 + place / 100 for place in range(1, count + 1)]
    expected = None if rank is None else pytest.approx(rank / 100)
    assert half_width_frac(shares) == expected
