"""Code from a cache leads to its modules by comments and source lines, and never to a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generated import TEXT, line_of, load_generated
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpuledger.collect.adapter.compiler import inductor
from gpuledger.collect.adapter.compiler.compiled_lines import common_place, find_modules
from gpuledger.collect.adapter.compiler.generated_code import read_functions
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, CompiledGraph, Frames, NodeOrigin
from gpuledger.collect.compiled.sites import sites_of
from gpuledger.model.journal.journal import CACHED_CODE, FOUND_BY_LINES

ADD_LINE: Frames = (("net.py", 3, "forward"),)
FC_LINE: Frames = (("net.py", 4, "forward"),)
ADD = NodeOrigin(1, "add", "Add", ADD_LINE)
NORM = NodeOrigin(2, "norm", "Norm", ADD_LINE)
FIRST = NodeOrigin(3, "h.0.fc", "Linear", FC_LINE)
SECOND = NodeOrigin(4, "h.1.fc", "Linear", FC_LINE)
CAPTURED = CapturedGraph({}, {"add": ADD, "norm": NORM, "fc": FIRST, "fc_1": SECOND})


def found(
    directory: Path, text: str, lines: list[tuple[int, Frames]] | None = None, captured: CapturedGraph = CAPTURED
) -> CompiledGraph | None:
    module = load_generated(directory, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuledger.collect.adapter.compiler.compiled_lines.source_lines", lambda _file: lines or [])
        statements = [one for function in read_functions(module) for one in function.statements]
        graph = CompiledGraph(module, unknown=CACHED_CODE)
        return find_modules(graph, statements, text, [CapturedGraph({}, {}), captured])


def test_a_comment_in_forward_leads_to_the_last_node_that_it_names(tmp_path: Path) -> None:
    graph = found(tmp_path, TEXT)
    assert graph is not None
    assert graph.unknown == FOUND_BY_LINES
    assert graph.buffers["buf0"] == graph.buffers["buf1"] == NORM
    assert graph.kernels[0].nodes == ("add", "norm")
    assert graph.buffers["buf2"].path == ""  # no comment, no line


def test_the_modules_of_a_function_that_has_none_are_known(tmp_path: Path) -> None:
    loss = NodeOrigin(0, "", "", ADD_LINE)
    graph = found(tmp_path, TEXT, captured=CapturedGraph({}, {"add": loss, "norm": loss}))
    assert graph is not None
    assert graph.unknown == ""
    assert graph.buffers["buf0"] == loss


def test_a_kernel_that_reads_an_element_of_a_tuple_does_not_make_it(tmp_path: Path) -> None:
    text = TEXT
    for line, node in (("buf3 = attention(", "add"), ("triton_poi_fused_copy_2.run(", "fc")):
        text = text.replace(
            f"            {line}", f"            # Topologically Sorted Source Nodes: [{node}]\n            {line}"
        )
    graph = found(tmp_path, text)
    assert graph is not None
    (function,) = read_functions(graph.module)
    sites = {site.line: site.main for site in sites_of(graph, function.statements, [])}
    assert sites[line_of(text, "buf3 = attention(")] == ADD
    assert sites[line_of(text, "triton_poi_fused_copy_2.run(")] == FIRST


def test_names_in_backward_are_not_those_of_forward(tmp_path: Path) -> None:
    text = TEXT.replace("0_forward", "0_backward")
    assert found(tmp_path, text) is None
    graph = found(tmp_path, text, [(1, FC_LINE)])
    assert graph is not None
    assert {place.path for place in graph.buffers.values()} == {"h"}


INPUTS: dict[str, tuple[int, ...] | None] = {"x": (8, 16), "weight": (16, 8), "other": None}


def with_flow(users: dict[str, tuple[str, ...]], inputs: dict[str, tuple[int, ...] | None] = INPUTS) -> CapturedGraph:
    return CapturedGraph({}, CAPTURED.nodes, inputs, users)


@pytest.mark.parametrize(
    ("captured", "path"),
    [
        (with_flow({"weight": ("fc_1",)}), "h.1.fc"),
        (with_flow({"weight": ("fc", "fc_1")}), "h"),
        (with_flow({"weight": ("norm",)}), "norm"),  # the lines are those of a view at its end
        (with_flow({"weight": ("unknown",)}), "h"),
        (with_flow({"weight": ("fc_1",)}, {"x": (8, 15), "weight": (16, 8)}), "h"),
        (with_flow({"weight": ("fc_1",)}, {}), "h"),
        (with_flow({"norm": ("fc",)}), "h.0.fc"),  # the buffer of a kernel with a comment
    ],
)
def test_of_several_modules_on_a_line_the_one_is_found_that_uses_what_is_read(
    tmp_path: Path, captured: CapturedGraph, path: str
) -> None:
    text = TEXT.replace("triton_poi_fused_add_0.run(primals_1, buf0, buf1, 128", "triton_poi_fused_add_0.run(buf0, 128")
    graph = found(tmp_path, text, [(1, FC_LINE)], captured)
    assert graph is not None
    assert graph.buffers["buf2"].path == path


@pytest.mark.parametrize(
    ("reader", "path"), [("body_0/fc", "h.0.fc"), ("body_1/fc", "h.1.fc"), ("checkpoint", "h"), ("unknown", "h")]
)
def test_a_name_of_nodes_in_several_bodies_is_that_of_the_body_that_uses_what_is_read(
    tmp_path: Path, reader: str, path: str
) -> None:
    """As a checkpoint around each block: Dynamo gives the nodes of both bodies the same names."""
    nodes = {"body_0/fc": FIRST, "body_1/fc": SECOND}
    captured = CapturedGraph({}, nodes, INPUTS, {"weight": ("checkpoint",)}, {"weight": (reader,)})
    text = TEXT.replace("[add, norm], Original", "[fc], Original").replace("run(primals_1, buf0", "run(primals_2, buf0")
    graph = found(tmp_path, text, captured=captured)
    assert graph is not None
    assert graph.buffers["buf0"].path == path


@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_a_checkpoint_uses_leads_to_the_layer_inside() -> None:
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    seen: list[CapturedGraph] = []

    def keep(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        seen.append(inductor._read_captured(graph, lambda _node: None))
        return graph

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x * layers[0].bias

    torch._dynamo.reset()
    torch.compile(forward, backend=keep)(torch.ones(2, 4))
    (captured,) = seen
    readers = {name: [captured.nodes[one] for one in captured.inside[name]] for name in captured.inputs}
    own = [[place.module_key for place in places] for places in readers.values()]
    first, second = (id(layer) for layer in layers)
    assert sorted(own) == sorted([[first], [first], [first, 0], [second], [second]])
    assert all(captured.users[name] for name in captured.inputs)


def test_a_gradient_is_on_the_only_module_that_uses_the_weight(tmp_path: Path) -> None:
    text = TEXT.replace("0_forward", "0_backward").replace("return (buf2, buf4, )", "return (None, buf3, buf2, )")
    captured = with_flow({"x": ("fc",), "weight": ("fc", "fc_1"), "other": ("fc_1",)})
    graph = found(tmp_path, text, [(1, FC_LINE)], captured)
    assert graph is not None
    assert graph.buffers["buf2"] == graph.kernels[2].parts[0][0] == SECOND
    assert graph.buffers["buf3"].path == "h"
    graph = found(tmp_path, text.replace("(None, buf3", "(buf3"), [(1, FC_LINE)], captured)
    assert graph is not None
    assert graph.buffers["buf2"].path == "h"


BACKWARD = (
    TEXT.replace("0_forward", "0_backward")
    .replace("primals_1, primals_2, primals_3 = args", "primals_1, saved, tangents_1 = args")
    .replace("primals_2", "saved")
    .replace("primals_3", "tangents_1")
)


@pytest.mark.parametrize(
    ("returned", "path"),
    [
        ([("buf1", None), ("primals_1", None), ("buf7", SECOND)], "h.1.fc"),
        ([("buf1", None), ("primals_1", None), ("buf7", NORM)], "h"),  # another line
        ([("buf1", None), ("primals_1", None), ("buf7", None)], "h"),
        ([("buf1", None), ("buf5", None), ("buf7", SECOND)], "h"),  # these are not its inputs
        ([("buf7", SECOND)], "h"),
        ([], "h"),
    ],
)
def test_what_backward_gets_from_forward_leads_to_the_module_that_uses_it(
    tmp_path: Path, returned: list[tuple[str, NodeOrigin | None]], path: str
) -> None:
    graph = found(tmp_path, BACKWARD, [(1, FC_LINE)], replace(CAPTURED, returned=returned))
    assert graph is not None
    assert graph.buffers["buf2"].path == path


def test_forward_code_keeps_what_it_returns_for_backward(tmp_path: Path) -> None:
    captured = with_flow({"fc": ("fc_1",)})
    assert found(tmp_path, TEXT, captured=captured) is not None
    assert [name for name, _ in captured.returned] == ["buf2", "buf4"]


def test_a_buffer_of_several_possible_modules_is_the_gradient_of_what_its_reader_computes(tmp_path: Path) -> None:
    text = BACKWARD.replace("add_0.run(primals_1, ", "add_0.run(")
    returned: list[tuple[str, NodeOrigin | None]] = [("primals_1", None), ("buf7", SECOND)]
    cases: tuple[tuple[tuple[str, ...], str], ...] = ((("fc",), "h.0.fc"), (("norm",), "h"), (("fc", "norm"), "h"))
    for users, path in cases:
        captured = replace(with_flow({"fc_1": users}, {}), returned=returned)
        graph = found(tmp_path, text, [(1, FC_LINE)], captured)
        assert graph is not None
        assert (graph.buffers["buf0"].path, graph.buffers["buf2"].path) == (path, "h.1.fc")


@pytest.mark.parametrize(("users", "path"), [(("norm",), "norm"), (("norm", "add"), "h.1.fc"), ((), "h.1.fc")])
def test_memory_that_a_backward_kernel_uses_twice_has_the_gradient_of_its_output_first(
    tmp_path: Path, users: tuple[str, ...], path: str
) -> None:
    text = TEXT.replace("0_forward", "0_backward").replace("buf1 = empty_strided", "buf9 = empty_strided")
    text = text.replace(
        "            stream0 = get", "            buf1 = buf9; del buf9  # reuse\n            stream0 = get"
    )
    captured = with_flow({"x": ("fc_1",), "fc_1": users}, {**INPUTS, "weight": None})
    graph = found(tmp_path, text, [(1, FC_LINE)], captured)
    assert graph is not None
    assert (graph.buffers["buf9"].path, graph.buffers["buf1"].path) == (path, "h.1.fc")


def test_code_that_fits_no_captured_graph_is_not_guessed(tmp_path: Path) -> None:
    assert found(tmp_path, TEXT.replace("[add, norm]", "[other]"), [(1, (("other.py", 1, "f"),))]) is None


def test_several_modules_on_a_line_give_the_one_around_them() -> None:
    assert common_place([FIRST]) == FIRST
    assert common_place([FIRST, SECOND]) == NodeOrigin(0, "h", "", FC_LINE, (3, 4))
    assert common_place([FIRST, FIRST._replace(module_key=0, path="")]).among == ()
    assert common_place([FIRST, ADD]).path == ""
    assert common_place([FIRST, FIRST._replace(path="h", module_key=9)])[:2] == (9, "h")
    assert common_place([]).path == ""
    assert inductor.frames_at([(5, ADD_LINE)], 4) == ()
    assert inductor.frames_at([(5, ADD_LINE), (7, FC_LINE)], 6) == ADD_LINE
