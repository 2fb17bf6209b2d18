"""The kernels around a buffer tell which node of a captured graph makes it. What they do not tell is not guessed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuledger.collect.adapter.compiler.buffer_values import BufferValues, find_values
from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, TensorKind


def captured_graph(inputs: str, **arguments: str) -> CapturedGraph:
    """Return a graph of nodes with their arguments."""
    names = [*inputs.split(), *arguments]
    users = {name: tuple(user for user, used in arguments.items() if name in used.split()) for name in names}
    return CapturedGraph({}, {}, dict.fromkeys(inputs.split()), users)


def launch(kernel: str, names: str) -> Statement:
    return Statement(0, kernel, "", None, "", tuple(names.split()), returns=False)


def rename(old: str, new: str) -> Statement:
    return Statement(0, "", "", (old, new), "", (old, new), returns=False)


def found(
    captured: CapturedGraph, statements: Iterable[Statement], kinds: dict[str, TensorKind] | None = None
) -> dict[str, str]:
    """Return the nodes of buffers. The name of a library's call is that of its node."""
    placed = [Statement(**{**vars(one), "line": line}) for line, one in enumerate(statements)]
    nodes = {one.line: one.kernel for one in placed if one.kernel in captured.users}
    return find_values(placed, nodes, captured, lambda name: name if name in captured.inputs else "", kinds or {}).nodes


BLOCKS = captured_graph(
    "words table g1 w1 g2 w2 g3 w3",
    **{"e": "words table", "n1": "e g1", "l1": "n1 w1", "a": "e l1", "n2": "a g2", "l2": "n2 w2"},
    **{"b": "a l2", "n3": "b g3", "l3": "n3 w3"},
)
FIRST = [launch("fused_0", "words table g1 buf0 buf1"), launch("l1", "buf1 w1 buf2")]


def test_each_output_of_a_fused_kernel_is_on_the_node_that_its_readers_use() -> None:
    second = [launch("fused_1", "buf0 buf2 g2 buf3 buf4"), launch("l2", "buf4 w2 buf5")]
    third = [launch("fused_2", "buf3 buf5 g3 buf6"), launch("l3", "buf6 w3 buf7")]
    assert found(BLOCKS, FIRST + second + third) == {
        **{"buf0": "e", "buf1": "n1", "buf2": "l1", "buf3": "a", "buf4": "n2", "buf5": "l2", "buf6": "n3", "buf7": "l3"}
    }


def test_memory_that_is_used_again_has_the_value_of_the_last_kernel() -> None:
    second = [rename("buf2", "buf3"), launch("fused_1", "buf3 buf0 g2 buf4"), launch("l2", "buf4 w2 buf5")]
    scratch = [rename("buf8", "buf9")]  # not written before, so no kernel reads it
    third = [launch("fused_2", "buf9 buf3 buf5 g3 buf6"), launch("l3", "buf6 w3 buf7")]
    values = found(BLOCKS, FIRST + second + scratch + third)
    assert (values["buf2"], values["buf3"]) == ("l1", "a")
    assert "buf9" not in values


def test_an_output_that_nothing_reads_is_known_if_the_same_kernel_runs_elsewhere() -> None:
    second = [launch("fused_1", "buf0 buf2 g2 buf3 buf4"), launch("l2", "buf4 w2 buf5")]
    third = [launch("fused_1", "buf3 buf5 g3 buf6 buf7"), launch("l3", "buf7 w3 buf8")]
    assert found(BLOCKS, FIRST + second + third)["buf6"] == "b"
    third[0] = launch("fused_2", "buf3 buf5 g3 buf6 buf7")
    assert "buf6" not in found(BLOCKS, FIRST + second + third)


def test_a_copy_of_an_input_is_on_the_node_that_reads_it() -> None:
    captured = captured_graph("x w1 w2", c1="x w1", r="c1", c2="r w2")
    copied = [launch("fused_0", "x w1 w2 buf0 buf1 buf2"), launch("c1", "buf0 buf1 buf3")]
    values = found(captured, [*copied, launch("fused_1", "buf3 buf4"), launch("c2", "buf4 buf2 buf5")])
    assert values == {"buf0": "c1", "buf1": "c1", "buf2": "c2", "buf3": "c1", "buf4": "r", "buf5": "c2"}


def test_a_kernel_that_may_compute_more_than_one_node_tells_nothing_of_its_input() -> None:
    """``buf2`` can be ``n`` or ``s`` or ``m``: a kernel can compute each from the one before."""
    captured = captured_graph("x g w u v", l="x w", k="x u", n="l g", s="n", m="n s", p="k", o="m p", q="o v")
    kernels = [
        *(launch("l", "x w buf0"), launch("k", "x u buf1"), launch("fused_0", "buf0 g buf2")),
        *(launch("fused_1", "buf2 buf1 buf3"), launch("q", "buf3 v buf4")),
    ]
    assert found(captured, kernels) == {"buf0": "l", "buf1": "k", "buf3": "o", "buf4": "q"}


def test_a_node_that_several_calls_compute_tells_nothing_of_what_they_read() -> None:
    captured = captured_graph("x w", n="x", two="n w", l="two w")
    kernels = [launch("fused_0", "x buf0"), launch("two", "buf0 w buf1"), launch("two", "buf1 w buf2")]
    assert found(captured, [*kernels, launch("l", "buf2 w buf3")]) == {"buf2": "two", "buf3": "l"}


def test_a_graph_that_is_not_that_of_the_code_tells_nothing() -> None:
    assert found(BLOCKS, [launch("fused_0", "buf0"), launch("other", "buf0 buf1")]) == {}


CAST = captured_graph("x g w b w2 b2", n="x g", l="n w b", a="l", l2="a w2 b2")
KINDS = {
    **{"n": TensorKind(64, "float32"), "w": TensorKind(64, "float32"), "b": TensorKind(8, "float32")},
    **{"l": TensorKind(96, "bfloat16"), "a": TensorKind(96, "bfloat16")},
    **{"w2": TensorKind(32, "float32"), "b2": TensorKind(4, "float32")},
}
CASTS = {
    **{"buf1": TensorKind(64, "bfloat16"), "buf2": TensorKind(64, "bfloat16"), "buf3": TensorKind(8, "bfloat16")},
    **{"buf5": TensorKind(96, "bfloat16"), "buf6": TensorKind(32, "bfloat16"), "buf7": TensorKind(4, "bfloat16")},
}
UNDER_AUTOCAST = [
    *(launch("fused_0", "x g w b buf0 buf1 buf2 buf3"), launch("l", "buf1 buf2 buf3 buf4")),
    *(launch("fused_1", "buf4 w2 b2 buf5 buf6 buf7"), launch("l2", "buf5 buf6 buf7 buf8")),
]


def values_under_autocast(kinds: dict[str, TensorKind], casts: dict[str, TensorKind]) -> BufferValues:
    captured = replace(CAST, kinds=kinds)
    placed = [Statement(**{**vars(one), "line": line}) for line, one in enumerate(UNDER_AUTOCAST)]
    nodes = {one.line: one.kernel for one in placed if one.kernel in captured.users}
    return find_values(placed, nodes, captured, lambda name: name if name in captured.inputs else "", casts)


def test_copies_in_another_type_are_on_the_node_that_reads_them() -> None:
    values = values_under_autocast(KINDS, CASTS)
    assert values.nodes == {
        **{"buf1": "l", "buf2": "l", "buf3": "l", "buf4": "l"},
        **{"buf5": "a", "buf6": "l2", "buf7": "l2", "buf8": "l2"},
    }
    # one of buf1 and buf2 is a copy of what the kernel computes, and buf3 can only be one of an input
    assert [values.computed[name] for name in ("buf1", "buf2", "buf3", "buf6")] == ["n", "n", "", ""]


def test_buffers_of_unknown_or_equal_types_are_not_taken_for_copies() -> None:
    for kinds, casts in ((KINDS, {}), ({}, CASTS), (KINDS | {"n": TensorKind(64, "bfloat16")}, CASTS)):
        values = values_under_autocast(kinds, casts)
        assert not {"buf1", "buf2"} & values.nodes.keys()
