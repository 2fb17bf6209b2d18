"""Compiled programs, each in two forks of this process: bare, and recorded as below ``gpuledger run``.

Called with a device, a backend and names of programs, prints as JSON what the compiler has done in both. The backend
``keep`` keeps the graphs that Dynamo and AOTAutograd make, and compiles nothing. With ``inductor``, the names of the
files in its cache are compared, which contain hashes of the generated code and of the keys, and two more forks find the
cache that the recorded one has filled. The modules that the first fork has loaded are loaded for all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, distributed, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import input_codes
from torch._functorch.aot_autograd import make_boxed_func
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH, STEPS = 8, 4, 8
"""More steps than are recorded: what observes the program changes between them."""

_DEVICE, _BACKEND = (*sys.argv[1:3], "cpu", "keep")[:2]
_PLACE = Path(tempfile.gettempdir(), f"compiled-pairs-{os.getpid()}")
"""Its path is in generated code, so it is the same in all forks."""
_KEYS = re.compile(r"(fxgraph/\w+|aotautograd)/\w+/")
_ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{12,}\b")
_graphs: list[str] = []


def keep_graphs(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Keep the text of a graph, and of those that AOTAutograd makes of it."""

    def keep(made: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        _graphs.append(made.print_readable(print_output=False))
        return make_boxed_func(made.forward)  # type: ignore[no-any-return]

    _graphs.append(graph.print_readable(print_output=False))
    compiled: Callable[..., Any] = aot_autograd(fw_compiler=keep)(graph, inputs)
    return compiled


def compiled(function: Any, **how: Any) -> Any:
    """Return a compiled function or module."""
    return torch.compile(function, backend=how.pop("backend", _backend()), **how)


def _backend() -> Any:
    return keep_graphs if _BACKEND == "keep" else "inductor"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(x)) + x


class Net(nn.Module):
    """Two equal blocks; ``around`` is called with each block and its input."""

    def __init__(self, around: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Layer(), Layer()])
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.around(block, x)
        return x


def train(
    net: nn.Module, call: Callable[[Tensor], Tensor], rows: Callable[[int], int] = lambda _: BATCH
) -> list[float]:
    """Return the losses of an eager loop around compiled code."""
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    losses = []
    for number in range(STEPS):
        loss = call(torch.randn(rows(number), WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(net: nn.Module, **how: Any) -> list[float]:
    """Return the losses of a model that is compiled whole."""
    rows = how.pop("rows", lambda _: BATCH)
    return train(net, compiled(net, **how), rows)


def in_blocks(_: object) -> list[float]:
    net = Net()
    for block in net.blocks:
        block.compile(backend=_backend())
    return train(net, net)


def breaking(block: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    x = block(x)
    return x + 1 if x.sum() > 1e9 else x


@contextlib.contextmanager
def doubled() -> Iterator[int]:
    yield 2


def in_contexts(block: nn.Module, x: Tensor) -> Tensor:
    print(end="")
    with doubled() as factor:
        torch._dynamo.graph_break()
        return block(x * factor)  # type: ignore[no-any-return]


def checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


@torch.library.custom_op("gpuledger_pairs::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """Double a tensor in an operator of the program's own."""
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda _, gradient: gradient * 2)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 3 * gradient * ctx.saved_tensors[0] ** 2


def with_operators(block: nn.Module, x: Tensor) -> Tensor:
    return Cube.apply(twice(block(x)))  # type: ignore[no-any-return, no-untyped-call]


def with_hooks(_: object) -> list[float]:
    net = Net()
    first, second = Layer(), Layer()
    net.blocks = nn.ModuleList([first, second])
    first.register_forward_hook(lambda _module, _args, out: out * 2)
    second.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    second.register_full_backward_hook(lambda *_: None)
    first.fc.bias.register_hook(lambda gradient: gradient * 2)
    nn.utils.parametrizations.weight_norm(second.fc)
    return whole(net)


def with_replaced_buffers(_: object) -> list[float]:
    """Spectral norms in compiled code replace their vectors in each call."""
    net, layers = Net(), (Layer(), Layer())
    net.blocks = nn.ModuleList(layers)
    for layer in layers:
        nn.utils.parametrizations.spectral_norm(layer.fc)
    return whole(net)


def matrices(_: object) -> list[float]:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
    return whole(net)


def inference(_: object) -> list[float]:
    call = compiled(Net().eval(), fullgraph=True)
    with torch.inference_mode():
        return [call(torch.ones(BATCH, WIDTH)).sum().item() for _ in range(STEPS)]


def attention(_: object) -> list[float]:
    from torch.nn.attention.flex_attention import flex_attention

    def attend(x: Tensor) -> Any:
        heads = x.view(1, 1, -1, 16)
        return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, i, j: score + i - j)

    call = compiled(nn.Sequential(nn.Linear(WIDTH, 16)).eval())
    attends = compiled(attend)
    with torch.no_grad():
        return [float(attends(call(torch.ones(128, WIDTH))).sum()) for _ in range(STEPS)]


def with_compiled_autograd(_: object) -> list[float]:
    net = Net()
    call, losses = compiled(net), []
    for _step in range(STEPS):
        loss = call(torch.ones(BATCH, WIDTH)).sum()
        with compiled_autograd._enable(compiled):
            loss.backward()
        losses.append(loss.item())
    return losses


def whole_step(_: object) -> list[float]:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    @compiled
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    return [step(torch.ones(BATCH, WIDTH)).item() for _ in range(STEPS)]


def optimizer_step(_: object) -> list[float]:
    """Train with two optimizers, each with a compiled step and a schedule."""
    net, losses = Net(), []
    optimizers = [torch.optim.SGD(block.parameters(), torch.tensor(0.05)) for block in net.blocks]
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2) for optimizer in optimizers]
    steps = [compiled(optimizer.step) for optimizer in optimizers]
    for _step in range(STEPS):
        loss = net(torch.ones(BATCH, WIDTH)).square().mean()
        loss.backward()
        for optimizer, step, schedule in zip(optimizers, steps, schedules, strict=True):
            step()
            optimizer.zero_grad()
            schedule.step()
        losses.append(loss.item())
    return losses


def per_sample(_: object) -> list[float]:
    net = Net()
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss_of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, weights, (x[None],)).square().mean()  # type: ignore[no-any-return]

    @compiled
    def step(weights: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        gradients = vmap(grad(loss_of), in_dims=(None, 0))(weights, x)
        return {name: weight - 0.05 * gradients[name].mean(0) for name, weight in weights.items()}

    for _step in range(STEPS):
        weights = step(weights, torch.ones(BATCH, WIDTH))
    return [float(weight.sum()) for weight in weights.values()]


class Normed(nn.Module):
    """A batch norm between two layers, of which the second one is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = Layer(), nn.BatchNorm1d(WIDTH), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.uncompiled(self.norm(self.first(x)))  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def uncompiled(self, x: Tensor) -> Tensor:
        return self.second(x)  # type: ignore[no-any-return]


def in_modes(_: object) -> list[float]:
    """Train under autocast in turns and once uncompiled, and evaluate in another thread."""
    net = Normed()
    call = compiled(net)
    steps = iter(range(STEPS))

    def forward(x: Tensor) -> Tensor:
        number = next(steps)
        torch._dynamo.mark_static(x, 0)
        stance = torch.compiler.set_stance("force_eager" if number == 4 else "default")
        with stance, torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 1):
            return call(x).float()  # type: ignore[no-any-return]

    losses = train(net, forward)

    def evaluate() -> None:
        with torch.no_grad():
            losses.append(call(torch.ones(BATCH, WIDTH)).sum().item())

    net.eval()
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    variances: list[float] = net.norm.running_var.tolist()  # type: ignore[union-attr]
    return losses + variances


def distributed_data_parallel(_: object) -> list[float]:
    with tempfile.TemporaryDirectory() as place:
        distributed.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
        return whole(nn.parallel.DistributedDataParallel(Net()))


def fails(_graph: object, _inputs: object) -> Callable[..., object]:
    raise RuntimeError("planted")


PROGRAMS: dict[str, Callable[[Any], list[float]]] = {
    "inference": inference,
    "sizes change": lambda _: whole(Net(), rows=lambda number: BATCH + number % 3),
    "graph breaks": lambda _: whole(Net(breaking)),
    "context managers": lambda _: whole(Net(in_contexts)),
    "regional": in_blocks,
    "compiled autograd": with_compiled_autograd,
    "checkpointed": lambda _: whole(Net(checkpointed), fullgraph=True),
    "FlexAttention": attention,
    "optimizer step": optimizer_step,
    "whole step": whole_step,
    "per-sample gradients": per_sample,
    "modes": in_modes,
    "DistributedDataParallel": distributed_data_parallel,
    "operators of its own": lambda _: whole(Net(with_operators)),
    "hooks and parametrizations": with_hooks,
    "replaced buffers": with_replaced_buffers,
    "falls back": lambda _: whole(Net(), backend=fails),
}
MATRICES = "matrix products"
"""Inductor generates Python for it, and no kernel that would have to be compiled."""


def run(name: str) -> dict[str, Any]:
    """Return what a program computes and what the compiler has done."""
    torch.manual_seed(0)
    with torch._dynamo.config.patch(suppress_errors=name == "falls back"):
        values = (PROGRAMS | {MATRICES: matrices})[name](None)
    utils = torch._dynamo.utils
    asked = [found() for found in input_codes.seen]
    return {
        "values": values,
        "graphs": [hashlib.sha256(_plain(text).encode()).hexdigest() for text in _graphs],
        "counters": {kind: {_plain(key): n for key, n in of.items()} for kind, of in utils.counters.items()},
        "breaks": [(_plain(one.reason), list(map(_place, one.user_stack or ()))) for one in utils.graph_break_reasons],
        "compilations": [
            (one.compile_id, one.co_name, one.co_firstlineno, _plain(one.recompile_reason), _plain(one.fail_reason))
            for one in utils.get_compilation_metrics()
        ],
        "asked": sorted({f"{Path(code.co_filename).name}:{code.co_qualname}" for code in asked if code is not None}),
        "files": _generated(_PLACE / "inductor"),
        "modules": list(sys.modules),
    }


def _generated(directory: Path) -> list[str]:
    """Return the names of the files and keys in Inductor's cache."""
    names = (str(place.relative_to(directory)) for place in directory.rglob("*") if place.is_file())
    keys = {found.group() if (found := _KEYS.match(name)) else name for name in names}
    return sorted(one for one in keys if one.endswith((".py", ".cpp", "/")) and "precompiled" not in one)


def _plain(text: object) -> str:
    return _ADDRESS.sub("", str(text))


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"


def run_recorded(name: str) -> dict[str, Any]:
    """Return the same of a program that is recorded, with the number of steps that were counted."""
    from gpuledger.collect.launch.settings import RecordSettings
    from gpuledger.collect.session.active import start_recording, stop_recording

    settings = RecordSettings(run_directory=_PLACE, first_step=2, last_step=3, devices=_DEVICE)
    session = start_recording(settings, _PLACE / "rank-0", from_outside=True)
    found = run(name)
    stop_recording(session, "exit")
    return found | {"steps": session.steps.seen, "notes": list(session.journal.part.notes)}


def start_fork(name: str, told: Path, *, is_recorded: bool, read_only: bool = False) -> int:
    """Return the id of a fork of this process in which :func:`run` writes what it returns to ``told``."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.environ |= {"XDG_CACHE_HOME": str(_PLACE / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(_PLACE / "inductor")}
            warnings.simplefilter("ignore")
            torch.set_default_device(_DEVICE) if _DEVICE != "cpu" else None
            if read_only:
                obey_permissions()
                assert not os.access(_PLACE / "inductor", os.W_OK, effective_ids=True)
            found = json.dumps(run_recorded(name) if is_recorded else run(name), default=str)
            told.write_text(found)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child


def end_fork(child: int, name: str, told: Path) -> dict[str, Any]:
    """Return what a fork has written, when it has ended."""
    _, status = os.waitpid(child, 0)
    assert status == 0, name
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def in_fork(name: str, *, is_recorded: bool, cached: bool = False, read_only: bool = False) -> dict[str, Any]:
    """Return what :func:`run` returns in a fork of this process."""
    if not cached:
        empty_place()
    told = _PLACE / "told.json"
    return end_fork(start_fork(name, told, is_recorded=is_recorded, read_only=read_only), name, told)


def empty_place() -> None:
    shutil.rmtree(_PLACE, ignore_errors=True)
    _PLACE.mkdir()


def obey_permissions() -> None:
    """Give up root's right to write read-only files, in this process. On Linux, others have no such right."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert not libc.capget(header, sets)
    sets[0] &= ~0b110  # the effective set without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert not libc.capset(header, sets)


def at_once(name: str) -> list[dict[str, Any]]:
    """Return what two recorded processes did that fill one cache at once, and what a third one did afterwards."""
    empty_place()
    places = [_PLACE / f"told-{number}.json" for number in range(2)]
    children = [start_fork(name, told, is_recorded=True) for told in places]
    found = [end_fork(child, name, told) for child, told in zip(children, places, strict=True)]
    return [*found, in_fork(name, is_recorded=True, cached=True)]


def in_read_only_cache(name: str) -> list[dict[str, Any]]:
    """Return what a program did bare and recorded with a filled cache that cannot be written."""
    folders = [_PLACE / "inductor", *(place for place in (_PLACE / "inductor").rglob("*") if place.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        return [in_fork(name, is_recorded=one, cached=True, read_only=True) for one in (False, True)]
    finally:
        for folder in folders:
            folder.chmod(0o755)


def compare(name: str) -> list[dict[str, Any]]:
    """Return what a program did bare and recorded.

    With ``inductor`` once more with a filled cache, then with one that cannot be written, and in processes that fill
    one at once.
    """
    found = [in_fork(name, is_recorded=False)]
    load_modules(found[0]["modules"])
    found.append(in_fork(name, is_recorded=True))
    if _BACKEND == "inductor":
        found += [in_fork(name, is_recorded=one, cached=True) for one in (False, True)]
        found += in_read_only_cache(name) + at_once(name)
    for one in found:
        del one["modules"]
    return found


def load_modules(names: list[str]) -> None:
    """Load what a compilation of a bare program has loaded, or every fork would load it."""
    for name in names:
        if name not in sys.modules and "compile_tasks" not in name:  # generated code
            importlib.import_module(name)


if __name__ == "__main__":
    from gpuledger.collect.session import active  # noqa: F401  before the forks, in which it would be loaded again

    print(json.dumps({name: compare(name) for name in sys.argv[3:]}))
    shutil.rmtree(_PLACE, ignore_errors=True)
