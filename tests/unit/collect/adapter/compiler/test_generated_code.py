"""Generated code is read statement by statement, and called back at its lines without being changed otherwise."""

from __future__ import annotations

import dis
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from generated import BRANCHES, TEXT, line_of, load_generated

from gpuledger.collect.adapter.compiler.code_positions import with_short_positions
from gpuledger.collect.adapter.compiler.generated_code import (
    LineObservation,
    UnknownCodeError,
    read_functions,
)


class Seen:
    """Notes what a generated function calls back."""

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.buffers: list[Any] = []
        self.inputs: list[Any] = []
        self.left = 0
        self.results: tuple[Any, ...] = ()

    def enter(self, inputs: list[Any]) -> Seen:
        self.inputs = list(inputs)
        return self

    def at(self, mark: int) -> None:
        self.marks.append(mark)

    def made(self, tensor: Any) -> None:
        self.buffers.append(tensor)

    def returns(self, tensors: tuple[Any, ...]) -> None:
        self.results = tensors

    def leave(self) -> None:
        self.left += 1


def run(module: Any) -> Any:
    return module.call([[1], [2], [3]])


def test_statements_say_what_they_allocate_launch_and_rename(tmp_path: Path) -> None:
    (found,) = read_functions(load_generated(tmp_path))
    assert found.function.__name__ == "call"
    assert [one.allocates for one in found.statements if one.allocates] == ["buf0", "buf1", "workspace_0"]
    assert [one.kernel for one in found.statements if one.kernel] == [
        *("triton_poi_fused_add_0", "triton_red_fused_norm_1", "extern_kernels.mm"),
        *("attention", "triton_poi_fused_copy_2"),
    ]
    assert ("buf1", "buf2") in [one.renames for one in found.statements]
    assert found.statements[-1].returns


def test_marks_come_before_their_statements_and_buffers_after(tmp_path: Path) -> None:
    module = load_generated(tmp_path)
    (found,) = read_functions(module)
    plain = found.function.__code__
    seen = Seen()
    marks = {line_of(TEXT, "buf0 = empty"): 0, line_of(TEXT, "out=buf2"): 1}
    observation = LineObservation(found, seen, marks, sees_buffers=True)
    assert run(module) == ([(8,)], [9])
    assert seen.inputs == [[1], [2], [3]]
    assert seen.marks == [0, 1]
    assert seen.buffers == [[(8, 16)], [(8,)], [(64,)]]
    assert seen.left == 1
    assert module.launched == ["add", "norm", "mm", "attention", "copy"]
    observation.remove()
    assert found.function.__code__ is plain
    run(module)
    assert seen.left == 1


@pytest.mark.parametrize(
    ("returned", "seen_results"),
    [
        ("(buf2, buf4, )", ([(8,)], [9])),
        ("(reinterpret_tensor(buf2, (4, 2), (2, 1), 0), buf4, )", ([(8,)], [9])),
        ("(buf2, buf4 + [0], )", ()),
        ("buf4", ()),
    ],
)
def test_what_a_function_returns_is_seen_if_it_is_variables(
    returned: str, seen_results: tuple[Any, ...], tmp_path: Path
) -> None:
    text = TEXT.replace("return (buf2, buf4, )", f"return {returned}")
    module = load_generated(tmp_path, text)
    vars(module)["reinterpret_tensor"] = lambda buffer, *_: buffer
    (found,) = read_functions(module)
    before, seen = run(module), Seen()
    observation = LineObservation(found, seen, {}, sees_buffers=False, sees_results=True)
    assert run(module) == before
    assert seen.results == seen_results
    observation.remove()


def test_a_traceback_has_the_lines_of_the_file_and_no_frame_of_ours(tmp_path: Path) -> None:
    text = TEXT.replace("buf3 = attention(buf2)", "buf3 = attention(1 / 0)")
    module = load_generated(tmp_path, text)
    (found,) = read_functions(module)

    def lines() -> list[tuple[Any, ...]]:
        with pytest.raises(ZeroDivisionError) as caught:
            run(module)
        frames = traceback.extract_tb(caught.value.__traceback__)[1:]
        return [(one.name, one.lineno, one.end_lineno, one.colno, one.end_colno) for one in frames]

    before = lines()
    seen = Seen()
    LineObservation(found, seen, {line_of(text, "attention(1 / 0)"): 0}, sees_buffers=True)
    assert lines() == before
    assert seen.left == 1


SOURCES = (
    TEXT,
    "def f(a):\n" + "\n" * 300 + "    return (a.b(1),\n\n\n\n      a +" + " " * 200 + "a[0])\n",
    "def f(a):\n    try:\n        return [one.x for one in a]\n    finally:\n        a.clear()\n",
)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes_of(one)


@pytest.mark.parametrize("source", SOURCES)
def test_a_shorter_table_has_the_same_lines_and_the_columns_of_what_can_raise(source: str) -> None:
    for code in codes_of(compile(source, "file.py", "exec")):
        short = with_short_positions(code)
        assert [one[0] for one in short.co_positions()] == [one[0] for one in code.co_positions()]
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("CALL", "LOAD_ATTR", "LOAD_METHOD", "BINARY_OP", "BINARY_SUBSCR"):
                unit = instruction.offset // 2
                before, after = (list(one.co_positions())[unit] for one in (code, short))
                assert before == after


def test_observed_code_has_no_longer_table_of_positions_than_plain_code(tmp_path: Path) -> None:
    launch = "            triton_poi_fused_copy_2.run(buf4, primals_3, stream=stream0)\n"
    text = TEXT.replace(launch, 3 * launch)
    assert text != TEXT
    (found,) = read_functions(load_generated(tmp_path, text))
    plain = found.function.__code__
    marks = {one.line: number for number, one in enumerate(found.statements) if one.allocates}
    LineObservation(found, Seen(), marks, sees_buffers=False)
    observed = found.function.__code__
    most = 1 if sys.version_info < (3, 13) else 1.1  # later versions have more instructions around a call in ``try``
    assert len(observed.co_linetable) < most * len(plain.co_linetable)


def test_at_the_recursion_limit_the_observer_is_left_out(tmp_path: Path) -> None:
    module = load_generated(tmp_path)
    (found,) = read_functions(module)

    class Deep(Seen):
        def at(self, mark: int) -> None:
            raise RecursionError

        def leave(self) -> None:
            raise RecursionError

    LineObservation(found, Deep(), {line_of(TEXT, "out=buf2"): 0}, sees_buffers=False)
    assert run(module) == ([(8,)], [9])


def test_code_that_another_tool_has_replaced_is_left(tmp_path: Path) -> None:
    module = load_generated(tmp_path)
    (found,) = read_functions(module)
    observation = LineObservation(found, Seen(), {}, sees_buffers=False)
    theirs = found.function.__code__ = (lambda self, args: None).__code__
    observation.remove()
    assert found.function.__code__ is theirs


@pytest.mark.parametrize("text", ["x = 1\n", "def call(a, b):\n    return a\n"])
def test_a_file_without_the_known_functions_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownCodeError, match="no function that runs the graph"):
        read_functions(load_generated(tmp_path, text))


CHANGES = {
    "lines": ("buf0 =", "\n    buf0 ="),
    "a constant": ("(8, 16)", "(8, 17)"),
    "a name": ("extern_kernels.mm", "extern_kernels.bmm"),
    "another statement": ("buf0 =", "launched.append('another'); buf0 ="),
    "no function": ("def call(", "def called("),
    "no Python": ("buf0 =", "buf0 !"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, name: str) -> None:
    """What runs is what was loaded, and never what stands in the file now."""
    module = load_generated(tmp_path)
    old, new = CHANGES[name]
    assert old in TEXT
    Path(str(module.__file__)).write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UnknownCodeError, match="was changed since it was loaded"):
        read_functions(module)


def test_a_file_that_was_deleted_is_refused(tmp_path: Path) -> None:
    module = load_generated(tmp_path)
    Path(str(module.__file__)).unlink()
    with pytest.raises(UnknownCodeError, match="cannot be read: No such file or directory"):
        read_functions(module)


def test_statements_in_branches_and_loops_are_read_and_marked(tmp_path: Path) -> None:
    module: Any = load_generated(tmp_path, BRANCHES)
    found = {one.name: one for one in read_functions(module)}
    assert set(found) == {"true_graph_0", "loop_graph_0", "partition_0", "call"}
    called = ["true_graph_0", "loop_graph_0", "loop_graph_0"]
    assert [one.kernel for one in found["call"].statements if one.kernel] == ["_Buffer", *called]
    assert [one.line for one in found["call"].statements if one.enters] == [line_of(BRANCHES, "self.partitions[0]")]
    marks = {one.line: one.line for one in found["call"].statements if one.kernel in called}
    seen = Seen()
    LineObservation(found["call"], seen, marks, sees_buffers=True)
    loop = line_of(BRANCHES, "(buf4[0],) =")
    assert module.call([[True], [1]]) == ([(8, 4)],)
    assert seen.marks == [line_of(BRANCHES, "buf2 = true_graph_0"), loop]
    assert module.call([[False], [1]]) == ([1],)
    assert seen.marks[2:] == [line_of(BRANCHES, "buf2 = loop_graph_0"), loop]
    assert module.launched == ["mm", "launch", "launch"]


def test_a_list_that_grows_is_no_kernel(tmp_path: Path) -> None:
    text = BRANCHES.replace("buf4[0] = buf3", "buf4[0] = buf3; buf2.append(buf4[0]); buf2[0].append(buf3)")
    (call,) = [one for one in read_functions(load_generated(tmp_path, text)) if one.name == "call"]
    assert not any("buf" in one.kernel for one in call.statements)
