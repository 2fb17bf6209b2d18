"""Each line of generated code that allocates or launches is on the module whose node it computes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any, NamedTuple, cast

import torch
from generated import BRANCHES, TEXT, line_of, load_generated
from torch import nn

from gpuledger.collect.adapter.compiler.generated_code import read_functions
from gpuledger.collect.adapter.compiler.graph_nodes import (
    NOWHERE,
    CompiledGraph,
    Kernel,
    NodeOrigin,
    parse_trace,
    read_graph,
)
from gpuledger.collect.adapter.compiler.inductor import CompilerWatch
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs, ObservedFunction
from gpuledger.collect.compiled.compiled_ranges import CompiledRanges
from gpuledger.collect.compiled.sites import Site, below_callers, sites_of
from gpuledger.model.journal.journal import FUSION_RANGE, Part


def place(path: str, line: int = 1) -> NodeOrigin:
    return NodeOrigin(0, path, "Linear", (("net.py", line, "forward"),))


ADD, NORM, MM, ATTENTION, COPY = (place(name, line) for line, name in enumerate(("add", "norm", "mm", "attn", "copy")))


def sites(tmp_path: Path, **changes: Any) -> dict[int, Site]:
    module = load_generated(tmp_path)
    graph = CompiledGraph(
        module,
        buffers={"buf0": ADD, "buf1": NORM, "buf2": MM, "buf3": ATTENTION, "buf4": ATTENTION},
        kernels=[
            Kernel(("buf0", "buf1"), (), ("add", "var_mean"), ((ADD, 300), (NORM, 100))),
            Kernel(("buf9",), ("buf1",), ("rsqrt",), ((NORM, 50),)),
            Kernel(("buf2",), (), ("mm",), ((MM, 10),)),
            Kernel(("buf3",), (), ("attention",), ((ATTENTION, 10),)),
            Kernel(("buf4",), (), ("getitem",), ((ATTENTION, 0),)),  # an assignment, which launches nothing
            Kernel(("buf5",), ("primals_3",), ("copy_",), ((COPY, 10),)),
        ],
        **changes,
    )
    (function,) = read_functions(module)
    return {site.line: site for site in sites_of(graph, function.statements, [])}


def test_a_fused_kernels_outputs_have_their_own_modules(tmp_path: Path) -> None:
    found = sites(tmp_path)
    assert found[line_of(TEXT, "buf0 = empty")].main == ADD
    kernel = found[line_of(TEXT, "add_0.run")]
    assert (kernel.kernel, kernel.parts) == ("triton_poi_fused_add_0", ((ADD, 300), (NORM, 100)))
    assert kernel.main == ADD
    assert kernel.nodes == ("add", "var_mean")


def test_a_kernel_is_launched_after_memory_of_its_own_is_used_again(tmp_path: Path) -> None:
    """As for a layer norm: the line that deletes the first name launches nothing."""
    allocated = 'buf1 = empty_strided_cuda((8,), (1,), "float32")'
    assert allocated in TEXT
    text = TEXT.replace(allocated, f"{allocated.replace('buf1', 'buf6')}; buf1 = buf6; del buf6  # reuse")
    module = load_generated(tmp_path, text)
    graph = CompiledGraph(module, {}, [Kernel(("buf0", "buf6", "buf1"), (), ("add", "var_mean"), ((NORM, 400),))])
    (function,) = read_functions(module)
    found = {site.line: site for site in sites_of(graph, function.statements, [])}
    assert found[line_of(text, "add_0.run")].main == NORM


def test_kernels_that_are_launched_as_one_share_its_time(tmp_path: Path) -> None:
    """As on the CPU: an embedding and the layer norm after it are one C++ function."""
    module = load_generated(tmp_path)
    embedding = Kernel(("buf0",), (), ("embedding",), ((ADD, 100),))
    norm = Kernel(("buf1",), (), ("var_mean", "rsqrt"), ((NORM, 300), (ADD, 20)))
    graph = CompiledGraph(module, {}, [embedding, norm])
    (function,) = read_functions(module)
    found = {site.line: site for site in sites_of(graph, function.statements, [])}[line_of(TEXT, "add_0.run")]
    assert found.parts == ((ADD, 120), (NORM, 300))
    assert found.main == NORM
    assert found.nodes == ("embedding", "var_mean", "rsqrt")


def test_memory_used_again_is_on_the_buffer_that_is_kept_and_names_the_other(tmp_path: Path) -> None:
    site = sites(tmp_path)[line_of(TEXT, "buf1 = empty")]
    assert (site.main, site.shared_with) == (MM, (NORM,))


def test_kernels_that_write_in_place_and_workspaces_are_found(tmp_path: Path) -> None:
    found = sites(tmp_path)
    assert found[line_of(TEXT, "norm_1.run")].main == NORM
    assert found[line_of(TEXT, "workspace_0 = empty")].main == NORM
    assert found[line_of(TEXT, "copy_2.run")].main == COPY
    assert found[line_of(TEXT, "= attention(")].main == ATTENTION


def graphs_of(registry: ModuleRegistry) -> CompiledGraphs:
    return CompiledGraphs(registry, StackTable(), RankJournal(Path, []), lambda _error: False)


def test_code_compiled_for_one_block_is_on_the_block_that_runs_it() -> None:
    linears = [nn.Linear(2, 2) for _ in range(3)]
    blocks = [nn.Sequential(linear) for linear in linears]
    registry = ModuleRegistry()
    registry.register(nn.ModuleList(blocks))
    graphs = graphs_of(registry)
    of_first = NodeOrigin(id(linears[0]), "0", "Linear", ())
    ids = [registry.register(block) for block in blocks]
    assert [graphs.resolve(of_first, base) for base in ids] == [registry.register(linear) for linear in linears]
    assert graphs.resolve(of_first, -1) == registry.register(linears[0])
    assert graphs.resolve(place(""), ids[1]) == ids[1]


def test_code_of_a_compiled_model_that_has_a_name_of_its_own_too_is_on_its_modules() -> None:
    """As in ``self.fast = torch.compile(self.net)``, or a model that was called uncompiled before."""
    net = nn.Sequential(nn.Linear(2, 2))
    fast, again = (cast("nn.Module", torch.compile(net)) for _ in range(2))
    whole = nn.ModuleDict({"net": net, "fast": fast})
    registry, alone = ModuleRegistry(), ModuleRegistry()
    registry.register(whole)
    alone.register(net)
    of_first = NodeOrigin(id(net[0]), "0", "Linear", ())
    for known, base in ((registry, fast), (alone, again)):
        assert graphs_of(known).resolve(of_first, known.register(base)) == known.register(net[0])
    part = Part()
    registry.drain(part)
    assert [one.get("wraps") for one in part.modules] == [None, None, None, 1]


def test_a_module_that_is_called_after_a_graph_break_is_found_by_its_identity(tmp_path: Path) -> None:
    """Dynamo has it in a variable of its own. It is not the module whose forward goes on."""
    inner, last = nn.Linear(2, 2), nn.Linear(2, 2)
    net = nn.Sequential(nn.Sequential(inner), last)
    registry = ModuleRegistry()
    base = registry.register(net)
    graph = Thing(nodes=[])
    keys = {"___stack0": last, "___stack1.0": inner}
    for name, module in keys.items():
        root, _, below = name.partition(".")
        Node(name, graph, nn_module_stack={str(id(module)): (f"L['{root}'].{below}".rstrip("."), nn.Linear)})
    made = {f"buf{number}": Thing(origins={node}, origin_node=node) for number, node in enumerate(graph.nodes)}
    found = read_graph(Thing(name_to_buffer=made), load_generated(tmp_path)).buffers
    resolved = [graphs_of(registry).resolve(one, base) for one in found.values()]
    assert resolved == [registry.register(module) for module in keys.values()]


def test_a_path_that_the_calling_module_lacks_is_on_the_calling_module() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    registry = ModuleRegistry()
    base = registry.register(net)
    assert graphs_of(registry).resolve(NodeOrigin(12345, "gone.fc", "Linear", ()), base) == base


def test_code_of_one_of_several_modules_is_on_the_innermost_one_that_contains_them() -> None:
    nets = [nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])) for _ in range(2)]
    registry = ModuleRegistry()
    for net in nets:
        registry.register(net)
    (first, second), (other, _) = (cast("nn.ModuleList", net[0]) for net in nets)

    def resolved(*modules: nn.Module) -> int:
        among = tuple(id(module) for module in modules)
        return graphs_of(registry).resolve(NodeOrigin(0, "0", "", (), among), -1)

    assert resolved(first, second) == registry.register(nets[0][0])
    assert resolved(first, nets[0]) == registry.register(nets[0])
    assert resolved(first, other) == resolved(first, nn.Identity()) == -1


def test_a_kernel_without_a_place_belongs_to_the_range_around_it(tmp_path: Path) -> None:
    (generated,) = read_functions(load_generated(tmp_path))
    two = (Site(3, "body", MM, ((MM, 10),)), Site(4, "inner", NOWHERE))
    ranges = CompiledRanges(graphs_of(ModuleRegistry()), RankJournal(Path, []), Guard(lambda _error: None))
    assert ranges.names_of(ObservedFunction("f.py", generated, two)) == [f"{FUSION_RANGE}0", ""]
    unread = ObservedFunction("f.py", generated, two, "loaded from a cache")
    assert ranges.names_of(unread) == [f"{FUSION_RANGE}2", f"{FUSION_RANGE}3"]


class Node:
    def __init__(self, name: str, graph: Any, op: str = "call_function", **meta: Any) -> None:
        self.name, self.graph, self.op, self.meta = name, graph, op, meta
        graph.nodes.append(self)


def test_a_buffer_is_on_its_own_node_else_on_the_last_one_with_a_module(tmp_path: Path) -> None:
    graph = Thing(nodes=[])
    trace = '  File "net.py", line 3, in forward\n    return self.fc(x)\n'
    norm = Node("norm", graph, nn_module_stack={"7": ("L['self'].norm", nn.LayerNorm)})
    fc = Node("mm", graph, fwd_nn_module_stack={"8@1": ("L['self'].h.0.fc@1", nn.Linear)}, stack_trace=trace)
    bare = Node("add", graph)
    of_function = Node("residual", graph, stack_trace=trace, partitioner_tag="is_forward")
    of_gradients = Node("add_1", graph, stack_trace=trace, partitioner_tag="is_backward")
    lowering = Thing(
        name_to_buffer={
            "buf0": Thing(origins={norm, fc}, origin_node=None),
            "buf1": Thing(origins={norm, fc}, origin_node=norm),
            "buf2": Thing(origins={norm, bare}, origin_node=bare),
            "buf3": Thing(origins=(), origin_node=None),
            "buf4": Thing(origins={norm, of_function}, origin_node=of_function),
            "buf5": Thing(origins={norm, of_gradients}, origin_node=of_gradients),
        }
    )
    found = read_graph(lowering, load_generated(tmp_path))
    assert found.buffers["buf0"] == NodeOrigin(8, "h.0.fc", "Linear", (("net.py", 3, "forward"),))
    assert found.buffers["buf1"].path == found.buffers["buf2"].path == "norm"
    assert found.buffers["buf3"].path == ""
    assert found.buffers["buf4"] == NodeOrigin(0, "", "", (("net.py", 3, "forward"),))  # the compiled function itself
    assert found.buffers["buf5"].path == "norm"


class Dep(NamedTuple):
    name: str


def scheduled(made: Any, *reads: str) -> Any:
    """Return an operation as Inductor's scheduler has it."""
    one = Thing(node=made, read_writes=Thing(reads={Dep(name) for name in reads}, writes=set()))
    one.get_nodes, one.get_outputs, one.get_buffer_names = lambda: [one], lambda: [], lambda: [made.name]
    return one


def test_the_input_of_a_library_call_is_on_the_module_that_computes_it(tmp_path: Path) -> None:
    """Inductor computes it in the call's layout, and counts the call among its origins."""
    graph = Thing(nodes=[])
    image = Node("primals_1", graph, op="placeholder")
    norm = Node("mul", graph, fwd_nn_module_stack={"7": ("L['self'].norm", nn.BatchNorm2d)})
    conv = Node("convolution_backward", graph, fwd_nn_module_stack={"8": ("L['self'].conv", nn.Conv2d)})
    gradient = Thing(name="buf0", origins={norm, conv}, origin_node=None, data=Thing())
    call = Thing(name="buf1", origins={norm, conv}, origin_node=None)
    only_copied = Thing(name="buf2", origins={conv}, origin_node=None, data=Thing())
    copied_input = Thing(name="buf3", origins={image}, origin_node=image, data=Thing())
    made = [gradient, call, only_copied, copied_input]
    nodes = [scheduled(copied_input), scheduled(gradient, "buf3"), scheduled(only_copied), scheduled(call, "buf0")]
    lowering = Thing(name_to_buffer={one.name: one for one in made}, scheduler=Thing(nodes=nodes))
    found = read_graph(lowering, load_generated(tmp_path))
    assert {name: place.path for name, place in found.buffers.items()} == {
        **{"buf0": "norm", "buf1": "conv", "buf2": "conv", "buf3": "norm"}
    }
    of_output = {one.outputs[0]: one for one in found.kernels}
    assert [of_output[name].nodes for name in ("buf0", "buf1")] == [("mul",), ("convolution_backward",)]
    assert [place.path for one in found.kernels for place, _ in one.parts] == ["norm", "norm", "conv", "conv"]


class MultiOutput(Thing):
    """What a call returns, by the name that Inductor gives it."""


def test_what_a_call_returns_is_no_kernel_of_its_own(tmp_path: Path) -> None:
    """As after a custom operator with one output, whose name the generated code only assigns."""
    graph = Thing(nodes=[])
    rms = Node("rms", graph, nn_module_stack={"7": ("L['self'].norm", nn.RMSNorm)})
    call = Thing(name="buf1", origins={rms}, origin_node=None)
    result = MultiOutput(name="buf2", origins={rms}, origin_node=rms)
    lowering = Thing(
        name_to_buffer={one.name: one for one in (call, result)},
        scheduler=Thing(nodes=[scheduled(call), scheduled(result)]),
    )
    found = read_graph(lowering, load_generated(tmp_path))
    assert [one.outputs for one in found.kernels] == [("buf1",)]
    assert found.buffers["buf2"].path == "norm"


def test_a_compiler_of_another_form_is_said_and_nothing_raised(tmp_path: Path) -> None:
    module = load_generated(tmp_path)
    registry = ModuleRegistry()
    journal = RankJournal(Path, [])
    graphs = CompiledGraphs(registry, StackTable(), journal, lambda _error: False)
    watch = CompilerWatch(graphs.add, lambda _error: False)
    watch._enter_lowering(None)
    watch._leave_lowering(Thing(), module)
    assert "compiled_unread" not in journal.part.facts  # it does not run in the recording
    (function,) = graphs.functions
    graphs.note_called(function, sys._getframe())
    assert "AttributeError" in journal.part.facts["compiled_unread"]["cgenerated.py"]


def test_source_frames_are_innermost_first() -> None:
    trace = '  File "a.py", line 3, in outer\n    x\n  File "b.py", line 4, in inner\n    y\n'
    assert parse_trace(trace) == (("b.py", 4, "inner"), ("a.py", 3, "outer"))
    assert parse_trace(None) == ()


def sites_of_branches(tmp_path: Path, **read: Any) -> dict[str, dict[int, Site]]:
    """Return the sites of each function by their lines."""
    module = load_generated(tmp_path, BRANCHES)
    graph = CompiledGraph(module, **read)
    found = {one.name: tuple(sites_of(graph, one.statements, [])) for one in read_functions(module)}
    return {name: {site.line: site for site in own} for name, own in below_callers(found).items()}


def test_paths_in_a_body_are_below_the_module_that_calls_it(tmp_path: Path) -> None:
    block, fc = place("h.one"), place("h.one.fc")
    made = "true_graph_0_buf0"
    kernels = [Kernel((made,), (), ("mm",), ((fc, 9), (block, 1))), Kernel(("buf2",), (), ("cond",), ((block, 0),))]
    found = sites_of_branches(
        tmp_path, buffers={made: fc}, kernels=kernels, bodies={"true_graph_0": block, "loop_graph_0": block}
    )
    inside = found["true_graph_0"]
    assert inside[line_of(BRANCHES, f"{made} = empty")].main.path == "fc"
    kernel = inside[line_of(BRANCHES, f"out={made}")]
    assert [(one.path, size) for one, size in kernel.parts] == [("fc", 9), ("", 1)]
    assert found["call"][line_of(BRANCHES, "buf2 = true_graph_0")].parts == ((block, 0),)
    assert found["call"][line_of(BRANCHES, "(buf4[0],) =")].main == block  # no output has a kernel


def test_what_has_no_place_in_a_body_is_on_the_module_that_calls_it(tmp_path: Path) -> None:
    found = sites_of_branches(tmp_path, bodies={"true_graph_0": place("h.one")})
    kernel = found["true_graph_0"][line_of(BRANCHES, "out=true_graph_0_buf0")]
    assert kernel.parts == ((NOWHERE, 0),)


def test_the_range_of_a_kernel_ends_where_a_part_of_the_graph_begins(tmp_path: Path) -> None:
    site = sites_of_branches(tmp_path)["call"][line_of(BRANCHES, "self.partitions[0]")]
    assert (site.kernel, site.main, site.may_allocate) == ("", NOWHERE, True)


def test_the_kernels_of_bodies_are_read_with_the_places_of_their_own_nodes(tmp_path: Path) -> None:
    outer, inner = Thing(nodes=[]), Thing(nodes=[])
    cond = Node("cond", outer, nn_module_stack={"5": ("L['self'].block", nn.Sequential)})
    fc = Node("mm", inner, nn_module_stack={"8": ("L['self'].block.fc", nn.Linear)})
    bare = Node("relu", inner)
    of_fc = Thing(name="true_graph_0_buf0", origins={cond, fc}, origin_node=None)
    of_none = Thing(name="true_graph_0_buf1", origins={cond, bare}, origin_node=bare)
    body = Thing(
        name="true_graph_0",
        graph=inner,
        name_to_buffer={one.name: one for one in (of_fc, of_none)},
        scheduler=Thing(nodes=[scheduled(of_fc), scheduled(of_none)]),
    )
    branch = Thing(name="buf2", origins={cond}, origin_node=None, true_subgraph=Thing(graph=body))
    lowering = Thing(name_to_buffer={"buf2": branch}, scheduler=Thing(nodes=[scheduled(branch)]))
    found = read_graph(lowering, load_generated(tmp_path))
    assert {name: one.path for name, one in found.bodies.items()} == {"true_graph_0": "block"}
    paths = {"buf2": "block", "true_graph_0_buf0": "block.fc", "true_graph_0_buf1": "block"}
    assert {name: one.path for name, one in found.buffers.items()} == paths
    assert {one.outputs[0]: [at.path for at, _ in one.parts] for one in found.kernels} == {
        name: [path] for name, path in paths.items()
    }
    assert found.kernels[1].nodes == ("mm",)


def test_code_of_an_optimizers_file_is_of_its_step_and_that_of_a_schedule_or_an_average_is_not() -> None:
    def in_optimizer(name: str) -> bool:
        file = str(Path(torch.optim.__file__).with_name(name))
        where = NodeOrigin(0, "", "", ((file, 5, "step"), ("train.py", 3, "fit")))
        as_part = Site(4, "k", NOWHERE, ((where, 8),)).in_optimizer
        assert Site(4, "k", where).in_optimizer is as_part
        return as_part

    found = {name: in_optimizer(name) for name in ("adam.py", "optimizer.py", "lr_scheduler.py", "swa_utils.py")}
    assert found == {"adam.py": True, "optimizer.py": True, "lr_scheduler.py": False, "swa_utils.py": False}
    assert not Site(4, "k", place("net")).in_optimizer
