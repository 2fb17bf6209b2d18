"""Module paths and names as people read them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpuledger.analyze.module_paths import in_containers, module_rows, qualified_names, with_names, without_wrappers


def entry(path: str, root: int, class_name: str = "Net", parent: int = -1, parameters: int = 1) -> dict[str, Any]:
    return {
        "path": path,
        "class_name": class_name,
        "parent": parent,
        "root": root,
        "parameters": parameters,
        "compiled": False,
    }


NET = [entry("", 0, parameters=0), entry("a", 0, parent=0), entry("a.b", 0, parent=1)]


def paths(modules: list[dict[str, Any]], called: Collection[int]) -> list[str]:
    return [row["path"] for row in module_rows(modules, called)]


def test_one_called_module_goes_by_plain_names() -> None:
    assert paths(NET, [0]) == ["Net", "a", "a.b"]
    assert [row["depth"] for row in module_rows(NET, [0])] == [0, 1, 2]
    assert [row["parent_id"] for row in module_rows(NET, [0])] == [None, 0, 1]
    assert qualified_names(["a.w", "loose"], {0: 1}, NET, [0]) == ["a.w", "loose"]


def test_a_module_never_called_goes_by_its_class_first() -> None:
    copy = [entry("", 3), entry("a", 3, parent=3)]
    assert paths(NET + copy, [0]) == ["Net", "a", "a.b", "Net#2", "Net#2.a"]
    assert qualified_names(["a.w", "a.w"], {0: 1, 1: 4}, NET + copy, [0]) == ["a.w", "Net#2.a.w"]


def test_two_called_modules_both_go_by_their_class_first() -> None:
    other = [entry("", 3, "Critic"), entry("a", 3, parent=3)]
    assert paths(NET + other, [0, 3]) == ["Net", "Net.a", "Net.a.b", "Critic", "Critic.a"]
    assert qualified_names(["a.w", "a.w", "x"], {0: 1, 1: 4}, NET + other, [0, 3]) == ["Net.a.w", "Critic.a.w", "x"]


def test_modules_of_one_class_go_by_the_variables_that_only_one_of_them_has() -> None:
    named = with_names(
        [entry("", 0), entry("a", 0, parent=0), entry("", 2), entry("", 3)], [(0, "generator"), (2, "x")], []
    )
    assert paths(named, [0, 2, 3]) == ["generator", "generator.a", "x", "Net"]
    assert paths(with_names(named, [(2, "generator"), (9, "critic")], []), [0, 2]) == ["Net", "Net.a", "Net#2", "Net#3"]
    assert qualified_names(["a.w"], {0: 1}, named, [0, 2]) == ["generator.a.w"]


def test_modules_have_the_classes_that_they_got() -> None:
    named = with_names([entry("", 0), entry("a", 0, "LazyLinear", parent=0)], [], [(1, "Linear"), (2, "Other")])
    assert [row["class_name"] for row in module_rows(named, {0})] == ["Net", "Linear"]


def test_models_in_wrappers_are_outermost_ones() -> None:
    modules = [entry("", 0, "Wrapper", parameters=0), entry("f", 0, parent=0), entry("f.a", 0, parent=1)]
    modules += [entry("", 3, "Other"), entry("fa", 0, "Late", parent=0)]
    placed, called = without_wrappers(modules, {0}, [(1, 0), (3, 9), (99, 0)])
    assert called == {0, 1}
    rows = module_rows(placed, called - {0})
    assert [(row["path"], row["root_id"], row["parent_id"]) for row in rows] == [
        ("Wrapper", 0, None),
        ("Net", 1, None),
        ("a", 1, 1),
        ("Other", 3, None),
        ("Wrapper.fa", 0, 0),
    ]
    assert qualified_names(["f.w", "f.a.w", "x"], {0: 1, 1: 2}, placed, called - {0}) == ["w", "a.w", "x"]


def test_a_called_module_without_parameters_takes_nobody_s_name() -> None:
    loss = [entry("", 3, "Loss", parameters=0)]
    assert paths(NET + loss, [0, 3]) == ["Net", "a", "a.b", "Loss"]


def test_a_compiled_module_goes_by_the_class_that_was_compiled() -> None:
    whole = [entry("", 0, "OptimizedModule", parameters=0), entry("", 0, "Net", parent=0), entry("a", 0, parent=1)]
    assert paths(whole, [0]) == ["Net", "Net", "a"]
    assert paths([*whole, entry("", 3, "Net")], [0, 3]) == ["Net", "Net", "Net.a", "Net#2"]
    assert paths([entry("", 0, "OptimizedModule")], [0]) == ["OptimizedModule"]


def test_nothing_called_and_nothing_known() -> None:
    assert paths(NET, []) == ["Net", "Net.a", "Net.a.b"]
    assert paths([], []) == []
    assert qualified_names(["w"], {0: 7}, [], []) == ["w"]


def test_names_that_are_no_text_can_be_kept() -> None:
    (row,) = module_rows([entry("", 0, "\ud800")], [0])
    assert row["path"] == row["class_name"] == "\\ud800"


def test_parts_that_are_called_alone_have_the_paths_of_the_model_that_contains_them() -> None:
    """``model.encoder(x)`` and ``model.decoder(x)``: the encoder's inner module is ``encoder.b``."""
    encoder = [entry("", 0, "Linear"), entry("b", 0, parent=0)]
    modules = [*encoder, entry("", 2, "Linear"), entry("", 3, "Net", parameters=0), entry("", 4, "Trainer")]
    contained = [(0, 3, 3, "encoder"), (2, 3, 3, "decoder"), (3, 4, 4, "model")]
    placed, called = in_containers(modules, [0, 2], contained[:2])
    assert paths(placed, called) == ["encoder", "encoder.b", "decoder", "Net", "Trainer"]
    assert [row["parent_id"] for row in module_rows(placed, called)] == [3, 0, 3, None, None]
    names = qualified_names(["weight", "b.weight", "loose"], {0: 2, 1: 1}, placed, called)
    assert names == ["decoder.weight", "encoder.b.weight", "loose"]
    placed, called = in_containers(modules, [0, 2], contained)
    assert paths(placed, called) == ["model.encoder", "model.encoder.b", "model.decoder", "model", "Trainer"]


def test_parts_of_a_freed_module_have_the_paths_of_the_model_that_has_them_now() -> None:
    """A constructor calls ``nn.Sequential(layers)`` to find out the size of its output, and keeps ``layers`` only."""
    before = [entry("", 0, "Sequential", parameters=0), entry("conv_1", 0, parent=0), entry("conv_2", 0, parent=0)]
    modules = [*before, entry("", 3, "Net", parameters=0), entry("head", 3, parent=3)]
    placed, called = in_containers(modules, [0, 3], [(1, 3, 3, "cnn.0"), (2, 3, 3, "cnn.1")])
    assert paths(placed, called) == ["Sequential", "cnn.0", "cnn.1", "Net", "head"]
    names = qualified_names(["conv_2.weight", "head.weight"], {0: 2, 1: 4}, placed, called)
    assert names == ["cnn.1.weight", "head.weight"]


def test_containers_that_do_not_exist_are_ignored() -> None:
    wrong = [(0, 9, 0, "x"), (0, 0, 0, "x"), (0, 1, 0, "x"), (-1, 0, 0, "x"), (0, 0, 9, "x")]
    placed, called = in_containers(NET, [0], wrong)
    assert paths(placed, called) == paths(NET, [0])
