"""Bytes, milliseconds and joules side by side: what is folded, sorted or cut still sums to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.step.side_by_side import GroupLine, fold_numbers, sort_lines
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.side_by_side_table import side_by_side_table, units_of_samples


def line(label: str, size: int | None = 1, time_ns: float | None = 2.0, energy_j: float | None = 3.0) -> GroupLine:
    return GroupLine(label, size, time_ns, time_ns, 0.0 if time_ns is not None else None, energy_j, 0.5)


PATHS = st.lists(
    st.lists(st.sampled_from(["0", "1", "12", "layers", "mlp"]), min_size=1, max_size=4).map(".".join), unique=True
)


@given(PATHS)
def test_folding_keeps_every_sum(paths: list[str]) -> None:
    lines = [line(path, size) for size, path in enumerate(paths)]
    folded = fold_numbers(lines, {})
    assert sum(one.folded for one in folded) == len(lines)
    for name in ("bytes", "time_ns", "energy_j", "uncertainty_j"):
        assert sum(getattr(one, name) for one in folded) == sum(getattr(one, name) for one in lines)
    assert len({one.label for one in folded}) == len(folded)


def test_layers_that_differ_in_their_number_become_one() -> None:
    folded = fold_numbers([*(line(f"layers.{n}.mlp") for n in range(32)), line("head"), line("0")], {})
    assert [(one.label, one.folded) for one in folded] == [("layers.*.mlp", 32), ("head", 1), ("0", 1)]


def test_layers_of_several_models_of_a_list_become_one() -> None:
    folded = fold_numbers([*(line(f"models[{n}].fc") for n in range(8)), line("models[0]")], {})
    assert [(one.label, one.folded) for one in folded] == [("models[*].fc", 8), ("models[0]", 1)]


def test_a_number_that_all_have_stays() -> None:
    folded = fold_numbers([line(f"model.0.layers.{n}.1.fc") for n in range(4)], {})
    assert [(one.label, one.folded) for one in folded] == [("model.0.layers.*.1.fc", 4)]


def test_layers_of_another_class_are_not_identical() -> None:
    classes = {"0": "Linear", "1": "ReLU", "2": "Linear", "3": "ReLU", "4": "Tanh"}
    folded = fold_numbers([line(path) for path in classes], classes)
    assert [(one.label, one.folded) for one in folded] == [("* Linear", 2), ("* ReLU", 2), ("4", 1)]


def test_only_the_classes_that_differ_tell_folded_modules_apart() -> None:
    """The others would repeat the classes of what the modules are in, such as those of a sequence of sequences."""
    layers = {f"net.0.0.{n}": "Linear" if n % 2 == 0 else "Tanh" for n in range(5)}
    folded = fold_numbers([line(path) for path in layers], {"net.0": "Policy", "net.0.0": "Sequential", **layers})
    assert [(one.label, one.folded) for one in folded] == [("net.0.0.* Linear", 3), ("net.0.0.* Tanh", 2)]


@pytest.mark.parametrize(
    ("sort", "first"), [("bytes", "a"), ("time", "b"), ("energy", "c"), ("forward", "b"), (None, "a")]
)
def test_any_quantity_sorts(sort: str | None, first: str) -> None:
    lines = [line("c", 1, 1.0, 9.0), line("b", 2, 9.0, 1.0), line("a", 9, 2.0, 2.0)]
    assert sort_lines(lines, sort)[0].label == first


def test_a_quantity_nobody_has_sorts_by_one_that_is_there() -> None:
    assert sort_lines([line("a", 1, None, None), line("b", 2, None, None)], "energy")[0].label == "b"


def test_the_time_of_the_optimizer_has_a_column_if_it_takes_any() -> None:
    lines = [line("a"), GroupLine("b", 1, 9e6, 0.0, 0.0, None, None, optimizer_ns=9e6)]
    (head, *_, total), (without, *_) = (
        side_by_side_table(some, "module", 9).lines(Terminal()) for some in (lines, lines[:1])
    )
    assert head.split()[-6:-2] == ["optimizer", "ms", "all", "ms"]
    assert total.split()[-4] == "9.000"
    assert "optimizer" not in without
    (folded,) = fold_numbers(
        [GroupLine(f"h.{n}", 1, 9.0, 0.0, 0.0, None, None, optimizer_ns=4.0) for n in range(2)], {}
    )
    assert folded.optimizer_ns == 8.0


def test_an_evaluation_in_a_training_step_is_no_forward() -> None:
    lines = [line("a", 1, 2e6), GroupLine("b", 1, 9e6, 0.0, 0.0, None, None, optimizer_ns=0.0, evaluation_ns=9e6)]
    (head, *_, total), (without, *_) = (
        side_by_side_table(some, "module", 9).lines(Terminal()) for some in (lines, lines[:1])
    )
    assert head.split()[-8:-2] == ["forward", "ms", "evaluation", "ms", "all", "ms"]
    assert total.split()[-5:-2] == ["2.000", "9.000", "11.000"]
    assert "evaluation" not in without
    assert sort_lines(lines, "evaluation")[0].label == "b"
    assert sort_lines(lines[1:] + lines[:1], "forward")[0].label == "a"
    (folded,) = fold_numbers(
        [GroupLine(f"h.{n}", 1, 9.0, 0.0, 0.0, None, None, evaluation_ns=4.0) for n in range(2)], {}
    )
    assert folded.evaluation_ns == 8.0


def test_the_table_closes_with_the_total_and_leaves_out_what_nobody_has() -> None:
    lines = [line(f"kernel{n}", None, 1e6 * n, float(n)) for n in range(5, 0, -1)]
    rows = side_by_side_table(lines, "kernel", 2).lines(Terminal())
    assert "MiB" not in rows[0]
    assert rows[-1].split()[0] == "total"
    assert "15.000" in rows[-1]
    assert rows[-2].startswith("… 3 more")
    assert "6.000" in rows[-2]


def test_a_sample_has_its_share_of_times_and_joules_and_all_of_the_bytes() -> None:
    rows = side_by_side_table([line("a", 1024, 4e6, 2.0)], "module", 5, units_of_samples(8)).lines(Terminal())
    assert "µs/sample" in rows[0]
    assert "mJ/sample" in rows[0]
    assert rows[1].split()[1:] == ["1.000", "100.0", "%", "500.000", "500.000", "250.000", "62.500"]
    assert "forward" in rows[0]
    assert "backward" not in rows[0]


def test_a_sample_that_takes_little_is_shown_in_smaller_units() -> None:
    units = units_of_samples(65_536, 3e6, 1.6)
    rows = side_by_side_table([line("a", 1024, 3e6, 1.6)], "module", 5, units).lines(Terminal())
    assert "ns/sample" in rows[0]
    assert "µJ/sample" in rows[0]
    assert "45.776" in rows[1]
    assert "24.414" in rows[1]


def test_backward_sorts_by_itself() -> None:
    lines = [GroupLine(label, 1, 9.0 - back, 1.0, back, None, None) for label, back in (("a", 1.0), ("b", 2.0))]
    assert sort_lines(lines, "backward")[0].label == "b"
