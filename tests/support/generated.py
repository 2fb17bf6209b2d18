"""A file as TorchInductor generates it for a GPU, with stand-ins for what it allocates and launches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TEXT = """# AOT ID: ['0_forward']
from contextlib import nullcontext
launched = []


class _Kernel:
    def __init__(self, name):
        self.name = name

    def run(self, *arguments, **options):
        launched.append(self.name)


class extern_kernels:
    @staticmethod
    def mm(a, b, out):
        launched.append("mm")


def empty_strided_cuda(size, stride, dtype):
    return [size]


def reinterpret_tensor(tensor, size, stride, offset):
    return tensor


def assert_size_stride(*arguments):
    pass


def get_raw_stream(number):
    return number


def attention(*arguments):
    launched.append("attention")
    return ([9], [10])


triton_poi_fused_add_0 = _Kernel("add")
triton_red_fused_norm_1 = _Kernel("norm")
triton_poi_fused_copy_2 = _Kernel("copy")


class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def recursively_apply_fns(self, fns):
        self.partitions = [fn(one) for fn, one in zip(fns, self.partitions)]

    def call(self, args):
        primals_1, primals_2, primals_3 = args
        args.clear()
        assert_size_stride(primals_1, (8, 16), (16, 1))
        with nullcontext():
            buf0 = empty_strided_cuda((8, 16), (16, 1), "float32")
            buf1 = empty_strided_cuda((8,), (1,), "float32")
            stream0 = get_raw_stream(0)
            # Topologically Sorted Source Nodes: [add, norm], Original ATen: [aten.add, aten.native_layer_norm]
            triton_poi_fused_add_0.run(primals_1, buf0, buf1, 128, stream=stream0)
            workspace_0 = empty_strided_cuda((64,), (1,), "uint8")
            triton_red_fused_norm_1.run(buf0, buf1, workspace_0, stream=stream0)
            buf2 = buf1; del buf1  # reuse
            extern_kernels.mm(buf0, reinterpret_tensor(primals_2, (16, 8), (1, 16), 0), out=buf2)
            buf3 = attention(buf2)
            buf4 = buf3[0]
            triton_poi_fused_copy_2.run(buf4, primals_3, stream=stream0)
        return (buf2, buf4, )


runner = Runner(partitions=[])
call = runner.call


def benchmark_compiled_module(args, times=10):
    return call(list(args))
"""


BRANCHES = """# AOT ID: ['0_inference']
launched = []


class extern_kernels:
    @staticmethod
    def mm(a, b, out):
        launched.append("mm")


def empty_strided_cpu(size, stride, dtype):
    return [size]


class _Buffer(list):
    def item(self):
        return self[0]


def true_graph_0(args):
    true_graph_0_arg0_1, = args
    args.clear()
    true_graph_0_buf0 = empty_strided_cpu((8, 4), (4, 1), "float32")
    extern_kernels.mm(true_graph_0_arg0_1, true_graph_0_arg0_1, out=true_graph_0_buf0)
    return (true_graph_0_buf0, )


def loop_graph_0(args):
    loop_graph_0_arg0_1, = args
    args.clear()
    return (loop_graph_0_arg0_1, )


def partition_0(args):
    buf9, = args
    args.clear()
    launch(buf9)
    return (buf9, )


def launch(buffer):
    launched.append("launch")


class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        buf1 = _Buffer(arg0_1)
        buf2 = [None] * 1
        if buf1.item():
            # subgraph: true_graph_0
            true_graph_0_args = [arg1_1]
            buf2 = true_graph_0(true_graph_0_args)
        else:
            loop_graph_0_args = [arg1_1]
            buf2 = loop_graph_0(loop_graph_0_args)
        buf3 = buf2[0]
        buf4 = [None] * 1
        buf4[0] = buf3
        should_loop = True
        while should_loop:
            loop_graph_0_args = [buf4[0]]
            (buf4[0],) = loop_graph_0(loop_graph_0_args)
            should_loop = False
        buf9 = buf4[0]
        partition0_args = [buf9]
        (buf10,) = self.partitions[0](partition0_args)
        return (buf10, )


runner = Runner(partitions=[partition_0])
call = runner.call
"""
"""Generated code of ``torch.cond``, of a loop, and of a graph that was divided for CUDA graphs."""


def load_generated(directory: Path, text: str = TEXT, name: str = "cgenerated") -> ModuleType:
    """Return the module of a generated file in ``directory``."""
    place = directory / f"{name}.py"
    place.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line_of(text: str, piece: str) -> int:
    """Return the number of the line that contains ``piece``."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if piece in line)
