"""Predictions: they learn a known law, hold outside its range, keep duplicates together, and need no pickle."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present
from threadpoolctl import threadpool_info

from gpuledger.analyze.operator_work.formulas import FAMILIES, work_of
from gpuledger.errors import EmptyRunError, InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Record
from gpuledger.ops.predict import predict
from gpuledger.ops.predict.features import NAMES, Features, shape_family
from gpuledger.ops.predict.fit import Example, Model, Quantity, examples_of, fit, folds_of, group_numbers, out_of_range
from gpuledger.ops.predict.predict import GUESS, FittedPredictor, RoofPredictor, load_model, save_model
from gpuledger.ops.predict.process import Process, Scales, _negative_log_likelihood, learn_process
from gpuledger.ops.predict.roof import Roof
from gpuledger.ops.predict.trees import DRAWN, Forest, learn, learn_levels

Floats = npt.NDArray[np.float64]
Noisy = tuple[Features, Floats, npt.NDArray[np.int64], Process]
ROOF = Roof("card", {"float32": 60.0}, 4.8e3, 132, 700.0, 50 << 20, "datasheet")


def tensor(*shape: int) -> dict[str, Any]:
    stride = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return {"shape": list(shape), "dtype": "float32", "stride": stride}


def product(m: int, k: int, n: int) -> OperatorKey:
    return OperatorKey("aten.mm.default", (tensor(m, k), tensor(k, n)))


def law_ns(key: OperatorKey) -> float:
    """The time of a GPU that reaches 70 % of its roof, less where tiles are not full."""
    work = work_of(key)
    assert work.gemm is not None
    filled = work.gemm.m * work.gemm.n / (math.ceil(work.gemm.m / 128) * math.ceil(work.gemm.n / 128) * 128 * 128)
    return ROOF.time_ns(key, work) / 0.7 / filled


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    random = np.random.default_rng(0)
    keys = [product(*(int(2 ** random.uniform(5, 11)) for _ in range(3))) for _ in range(160)]
    return [Example(key, False, law_ns(key), 350.0, shape_family(key)) for key in keys]


@pytest.fixture(scope="module")
def model(examples: list[Example]) -> Model:
    return fit(examples, ROOF, "digest")


def errors_of(model: Model, keys: Sequence[OperatorKey]) -> Floats:
    costs = FittedPredictor(model).costs(keys, [False] * len(keys))
    return np.array([abs(cost.time_ns / law_ns(key) - 1) for cost, key in zip(costs, keys, strict=True)])


def test_a_fit_tells_how_far_it_is_and_uses_one_thread(
    examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    threads: list[int] = []

    def learn_and_look(features: Floats, target: Floats) -> Forest:
        threads.extend(one["num_threads"] for one in threadpool_info())
        return learn(features, target)

    monkeypatch.setattr("gpuledger.ops.predict.fit.learn", learn_and_look)
    fit(examples, ROOF, "digest", told.append)
    assert set(threads) == {1}
    assert told == sorted(told)
    assert len(told) > 20
    assert (told[0] > 0, told[-1]) == (True, 1.0)


def test_libraries_that_only_a_fit_imports_use_one_thread() -> None:
    """In a process that has imported none of them, with two threads by default."""
    script = (
        "from gpuledger.ops.predict.fitting import one_thread\n"
        "with one_thread():\n"
        "    from scipy.linalg.lapack import dpotrf\n"
        "    from sklearn.ensemble import HistGradientBoostingRegressor\n"
        "    from threadpoolctl import threadpool_info\n"
        "    print([one['num_threads'] for one in threadpool_info()])"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    threads = json.loads(subprocess.check_output([sys.executable, "-c", script], env=environ, text=True))
    assert len(threads) > 1
    assert set(threads) == {1}


def test_a_law_is_learned_for_shapes_that_were_not_seen(model: Model) -> None:
    random = np.random.default_rng(1)
    errors = errors_of(model, [product(*(int(2 ** random.uniform(5.5, 10.5)) for _ in range(3))) for _ in range(60)])
    assert np.median(errors) < 0.1


def test_it_holds_far_outside_the_range_it_was_learned_in(model: Model) -> None:
    random = np.random.default_rng(2)
    errors = errors_of(model, [product(*(128 * int(2 ** random.uniform(5, 6)) for _ in range(3))) for _ in range(20)])
    assert np.median(errors) < 0.1  # up to 500 times the FLOPs of the largest it has seen


def test_an_interval_lies_around_its_middle_and_energy_is_power_times_time(model: Model) -> None:
    keys = [product(2**n, 256, 512) for n in range(4, 13)]
    for cost in FittedPredictor(model).costs(keys, [False] * len(keys)):
        assert 0 < present(cost.time_low_ns) <= cost.time_ns <= present(cost.time_high_ns)
        assert cost.energy_j == pytest.approx(350.0 * cost.time_ns / 1e9, rel=0.02)
        assert cost.source == "predicted"


def test_another_card_is_predicted_by_its_own_roof(model: Model) -> None:
    twice = Roof("faster", {"float32": 120.0}, 9.6e3, 132, 1000.0, None, "datasheet")
    key = product(2048, 2048, 2048)
    here, there = (FittedPredictor(model, roof).costs([key], [False])[0] for roof in (None, twice))
    assert there.time_ns == pytest.approx(here.time_ns / 2, rel=0.05)
    share = present(there.energy_j) / there.time_ns
    assert share == pytest.approx(0.5e3 / 1e9, rel=0.02)  # of its power limit, as here


def test_out_of_range_is_said(model: Model) -> None:
    assert out_of_range(product(256, 256, 256), model.ranges) == ""
    assert "times the FLOPs" in out_of_range(product(2**14, 2**14, 2**14), model.ranges)
    assert "no elementwise operator" in out_of_range(OperatorKey("aten.relu.default", (tensor(4),)), model.ranges)


def test_a_kept_model_predicts_the_same_and_holds_no_pickle(model: Model, tmp_path: Path) -> None:
    place = tmp_path / "operators.model"
    save_model(model, place)
    keys = [product(100, 200, 300), product(7, 7, 7)]
    assert FittedPredictor(load_model(place)).costs(keys, [True, False]) == FittedPredictor(model).costs(
        keys, [True, False]
    )
    with np.load(place, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    place = tmp_path / "x.model"
    place.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.model"):
        load_model(place)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.npz"
    np.savez(place, facts=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="not a fitted model"):
        load_model(place)


def test_a_model_of_other_features_is_refused(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x.model"
    save_model(model, place)
    monkeypatch.setattr("gpuledger.ops.predict.predict.NAMES", ("other",))
    with pytest.raises(InputError, match="another version") as caught:
        load_model(place)
    assert "gpuledger ops fit" in str(caught.value.hint)


@pytest.mark.parametrize("lost", ["laws", "ranges", "roof", "examples"])
def test_a_model_that_lacks_something_is_refused_and_not_a_defect(model: Model, tmp_path: Path, lost: str) -> None:
    """One of an older gpuledger is kept in the user's cache, and is made anew where it is refused."""
    place = tmp_path / "x.model"
    save_model(model, place)
    with np.load(place) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    facts = json.loads(str(kept["facts"]))
    del facts[lost]
    with place.open("wb") as stream:
        np.savez(stream, **{**kept, "facts": np.array(json.dumps(facts))})
    with pytest.raises(InputError, match="not a fitted model, or damaged"):
        load_model(place)


def test_few_examples_teach_nothing(examples: list[Example]) -> None:
    with pytest.raises(EmptyRunError, match="at least"):
        fit(examples[:5], ROOF)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(2, 6))
def test_no_split_parts_a_family_of_shapes(numbers: list[int], folds: int) -> None:
    examples = [Example(product(4, 4, 4), False, 1.0, None, str(number)) for number in numbers]
    groups = group_numbers(examples)
    places = folds_of(groups, folds)
    for group in set(groups.tolist()):
        assert len(set(places[groups == group].tolist())) == 1
    assert places.max() < folds


def test_the_newest_record_of_an_operator_and_mode_is_the_example() -> None:
    key = product(8, 8, 8)
    cases: list[tuple[str, float | None, float | None, int, Literal["ok", "failed"]]] = [
        ("rotating", 1000.0, 2e-4, 1, "ok"),
        ("rotating", 1200.0, None, 2, "ok"),
        ("hot", 500.0, None, 3, "ok"),
        ("hot", None, None, 4, "failed"),
        ("hot", 3.0, None, 5, "ok"),  # launches nothing
    ]
    records = [
        Record(key.digest, "e", {"mode": mode}, time, time, time, energy, measured_ns=at, status=status)
        for mode, time, energy, at, status in cases
    ]
    found = {one.is_hot: one for one in examples_of(records, {key.digest: key})}
    assert (found[False].time_ns, found[True].time_ns) == (1200.0, 500.0)
    assert found[False].power_w == pytest.approx(200.0)
    assert found[True].power_w is None


def test_a_measured_operator_without_the_arguments_of_a_call_is_named() -> None:
    key = OperatorKey("aten.add_.Tensor", (1.0, 2.0))
    record = Record(key.digest, "e", {"mode": "hot"}, 1000.0, 1000.0, 1000.0, None, measured_ns=1, status="ok")
    with pytest.raises(InputError, match="add_"):
        examples_of([record], {key.digest: key})


def row_of(values: Floats, kind: Sequence[str] | npt.NDArray[np.str_]) -> Features:
    """Features of which the first two matter."""
    full = np.full((len(values), len(NAMES)), np.nan)
    full[:, :2] = values
    return Features(full, np.array(kind), np.zeros(len(values), dtype=np.int64))


@pytest.fixture(scope="module")
def noisy() -> Noisy:
    """Two kinds that follow one law, the second twice as slow; the family of shapes is every third row."""
    random = np.random.default_rng(5)
    values = random.normal(size=(120, 2))
    kinds = np.where(random.random(120) < 0.5, "a", "b")
    target = values[:, 0] + np.sin(values[:, 1]) + (kinds == "b") + 0.05 * random.normal(size=120)
    groups = np.repeat(np.arange(40), 3)
    return row_of(values, kinds), target, groups, learn_process(row_of(values, kinds), target, groups)


def test_a_process_tells_kinds_apart_and_interpolates(noisy: Noisy) -> None:
    *_, process = noisy
    asked = row_of(np.array([[0.1, 0.2]] * 2), ["a", "b"])
    middle, deviation = process.predict(asked)
    assert middle == pytest.approx([0.1 + np.sin(0.2), 1.1 + np.sin(0.2)], abs=0.15)
    _, unsure = process.predict(row_of(np.array([[0.1, 0.2]]), ["c"]))
    assert unsure[0] > 3 * deviation.max()


def test_beyond_what_was_measured_the_outermost_is_taken(noisy: Noisy) -> None:
    *_, process = noisy
    edge = process.rows.values.max(axis=0) * process.scale + process.shift
    values = [row_of(np.array([factor * edge[:2]]), ["a"]) for factor in (1.0, 1.5, 40.0)]
    assert len({float(process.predict(asked)[0][0]) for asked in values}) == 1


def test_trees_are_not_asked_of_what_lies_beyond_the_largest(noisy: Noisy) -> None:
    features, target, groups, process = noisy
    levels, column = learn_levels(features.kinds, target, groups)
    trees = learn(np.column_stack([features.values, column]), target + 5)  # far from the process
    quantity = Quantity(process, levels, trees, 1.0)
    asked = row_of(np.array([[4.0, 4.0]] * 3), ["a", "a", "a"])
    near, deviation = process.predict(asked)
    middle, low, high = quantity.predict(asked, np.array([0.0, 0.5, 1.0]))
    assert deviation[0] > 0.2
    assert middle[0] - near[0] == pytest.approx(2 * (middle[1] - near[1]))
    assert middle[0] > near[0] + 0.5
    assert middle[2] == near[2]
    assert (low <= middle).all()
    assert (middle <= high).all()


def test_families_are_told_by_their_own_rows_and_small_ones_with_help() -> None:
    random = np.random.default_rng(3)
    families = np.repeat([0, 1, 2, 3], [80, 90, 6, 5])
    features = replace(row_of(random.normal(size=(181, 2)), ["x"] * 181), families=families)
    target = features.values[:, 0] + 3.0 * (families == 1) + 0.05 * random.normal(size=181)
    process = learn_process(features, target, np.arange(181))
    misses, deviations = process.left_out(np.arange(181))
    assert np.median(np.abs(misses)) < 0.2
    assert np.isfinite(misses).all()
    assert (deviations > 0).all()
    middle, _ = process.predict(features)
    assert np.median(np.abs(middle - target)) < 0.1
    unknown, unsure = process.predict(replace(features[:1], families=np.array([9])))
    assert np.isfinite(unknown[0])
    assert unsure[0] > np.median(deviations)


def norm_ns(channels: int, training: bool) -> float:
    inputs = (tensor(32, channels, 64, 64), *[tensor(channels)] * 4, training, 0.1, 1e-5)
    key = OperatorKey("aten.cudnn_batch_norm.default", inputs)
    return replace(ROOF, flop_per_ns={"float32": 6e4}).time_ns(key, work_of(key))


def test_few_channels_leave_a_card_waiting_where_means_are_made() -> None:
    assert norm_ns(64, training=True) > 1.5 * norm_ns(64, training=False)
    assert norm_ns(2112, training=True) == pytest.approx(norm_ns(2112, training=False), rel=0.01)


def test_a_long_sum_is_split_over_a_card_that_would_wait() -> None:
    short, long = product(128, 4096, 512), product(128, 4096 * 64, 512)
    assert ROOF.time_ns(long, work_of(long)) < 20 * ROOF.time_ns(short, work_of(short))


def test_an_embeddings_gradient_reads_rows_and_writes_the_table() -> None:
    inputs = (tensor(4, 128, 64), {**tensor(4, 128), "dtype": "int64"}, 1000, -1, False)
    work = work_of(OperatorKey("aten.embedding_dense_backward.default", inputs))
    assert (work.read_bytes, work.written_bytes) == (4 * 128 * 64 * 4 + 4 * 128 * 8, 1000 * 64 * 4)


def test_leaving_groups_out_at_once_is_what_learning_without_them_gives(noisy: Noisy) -> None:
    features, target, groups, process = noisy
    misses, deviations = process.left_out(groups)
    kept = groups != 7
    without = replace(process, rows=process.rows[kept], target=target[kept])
    middle, deviation = without.predict(features[~kept])
    assert target[~kept] - middle == pytest.approx(misses[~kept], abs=1e-6)
    assert deviation == pytest.approx(deviations[~kept], abs=1e-4)


def test_the_slope_of_the_likelihood_is_its_difference(noisy: Noisy) -> None:
    _, target, _, process = noisy
    rows, flat = process.rows[:40], process.scales.flat
    aim = target[:40] - process.centre
    _, slope = _negative_log_likelihood(process.scales, rows, aim)
    for place in (0, 1, 2, 3, 4, 4 + len(FAMILIES), len(flat) - 2 * len(NAMES), len(flat) - len(NAMES) + 1):
        step = np.zeros_like(flat)
        step[place] = 1e-5
        costs = [_negative_log_likelihood(Scales.of_flat(flat + sign * step), rows, aim)[0] for sign in (1, -1)]
        assert slope[place] == pytest.approx((costs[0] - costs[1]) / 2e-5, rel=1e-3, abs=1e-5)


def test_trees_as_arrays_take_what_is_missing_as_scikit_learn_does() -> None:
    random = np.random.default_rng(5)
    features = random.normal(size=(300, 3))
    features[random.random((300, 3)) < 0.3] = np.nan
    target = np.where(np.isnan(features[:, 0]), 3.0, features[:, 0])
    forest = learn(features, target)  # compares itself with scikit-learn and raises where they differ
    assert np.abs(forest.predict(features) - target).mean() < 0.25
    assert forest.predict(features[:0]).shape == (0,)


def test_a_kinds_level_is_told_without_what_is_to_be_learned() -> None:
    kinds, groups = np.array(["a", "a", "a", "b"]), np.array([0, 0, 1, 2])
    levels, without = learn_levels(kinds, np.array([1.0, 3.0, 8.0, 0.0]), groups)
    mean = 3.0
    assert levels.of(np.array(["a", "c"])) == pytest.approx([(12 + DRAWN * mean) / (3 + DRAWN), mean])
    one, other = (8 + DRAWN * mean) / (1 + DRAWN), (4 + DRAWN * mean) / (2 + DRAWN)
    assert without == pytest.approx([one, one, other, mean])


def test_intervals_hold_nine_tenths_of_what_was_not_learned_from(examples: list[Example]) -> None:
    groups = group_numbers(examples)
    inside = [one for one, group in zip(examples, groups, strict=True) if group % 2]
    asked = [one for one, group in zip(examples, groups, strict=True) if not group % 2]
    costs = FittedPredictor(fit(inside, ROOF)).costs([one.key for one in asked], [False] * len(asked))
    held = [cost.holds(one.time_ns) for one, cost in zip(asked, costs, strict=True)]
    assert np.mean(held) > 0.75


@pytest.mark.parametrize(
    "key",
    [
        OperatorKey("aten.max_pool2d_with_indices.default", (tensor(2, 3, 8, 8), ["2", "2"])),
        OperatorKey("aten.add_.Tensor", (1.0, 2.0)),
        OperatorKey("aten.mm.default", (tensor(-4, 8), tensor(8, 8))),
    ],
    ids=["text as a window", "no tensor", "a negative size"],
)
def test_arguments_that_no_call_has_are_named(key: OperatorKey, model: Model) -> None:
    """They can come from a damaged workload file."""
    with pytest.raises(InputError, match=key.operator.split(".")[1]):
        FittedPredictor(model).costs([product(64, 64, 64), key], [False, False])
    assert FittedPredictor(model).costs([product(64, 64, 64)], [False])[0].time_ns > 0


def test_power_is_never_above_the_limit_of_the_card(examples: list[Example]) -> None:
    hot = fit([replace(example, power_w=900.0) for example in examples], ROOF, "digest")
    for cost in FittedPredictor(hot).costs([product(512, 256, 512)], [False]):
        assert cost.energy_j == pytest.approx(700.0 * cost.time_ns / 1e9)
        assert cost.energy_high_j == pytest.approx(700.0 * present(cost.time_high_ns) / 1e9)


def test_each_end_of_the_energy_is_of_the_same_end_of_time_and_power() -> None:
    times, powers = ([2e9], [1e9], [4e9]), ([300.0], [200.0], [500.0])
    cost = FittedPredictor._cost(0, times, powers)
    assert (cost.energy_j, cost.energy_low_j, cost.energy_high_j) == (600.0, 200.0, 2_000.0)
    assert (cost.time_ns, cost.time_low_ns, cost.time_high_ns) == (2e9, 1e9, 4e9)
    assert FittedPredictor._cost(0, times, None).energy_j is None


def test_what_is_drawn_to_the_best_of_its_kind_gets_shorter_at_all_three_ends(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = product(512, 256, 512)
    monkeypatch.setattr(predict, "drawn_to_best", lambda *_: np.zeros(1))
    (plain,) = FittedPredictor(model).costs([key], [False])
    monkeypatch.setattr(predict, "drawn_to_best", lambda *_: np.full(1, -1.0))
    (drawn,) = FittedPredictor(model).costs([key], [False])
    for end in ("time_ns", "time_low_ns", "time_high_ns"):
        assert getattr(drawn, end) == pytest.approx(getattr(plain, end) / 2)


def test_with_few_examples_the_roof_predicts_and_the_interval_is_wide() -> None:
    """Twice the roof's time and 350 W, as the examples; the interval is a factor to either side."""
    keys = [product(512, 512, 512), product(1024, 1024, 1024)]
    examples = [Example(key, False, 2 * ROOF.time_ns(key, work_of(key)), 350.0, shape_family(key)) for key in keys]
    (cost,) = RoofPredictor(ROOF, examples).costs([keys[0]], [False])
    assert cost.time_ns == pytest.approx(examples[0].time_ns)
    for end, factor in (("", 1.0), ("_low", 1 / GUESS), ("_high", GUESS)):
        assert getattr(cost, f"time{end}_ns") == pytest.approx(factor * examples[0].time_ns)
        assert getattr(cost, f"energy{end}_j") == pytest.approx(350.0 * factor * examples[0].time_ns / 1e9)
    (bare,) = RoofPredictor(ROOF, []).costs([keys[0]], [False])
    assert bare.time_ns == pytest.approx(examples[0].time_ns / 2)
    assert bare.energy_j is None
