"""Compiled programs in the stances and settings of torch.compile, and those that export, package or keep code.

All of them are in :data:`PROGRAMS`, as those of :mod:`compiled_variants` are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import compiled_pairs as pairs
import torch
from compiled_pairs import STEPS, WIDTH, Net, breaking, compiled
from compiled_variants import adam, batch, outcome_of, train, whole
from torch import Tensor, nn

PROGRAMS: dict[str, Callable[[], list[Any]]] = {}
LATER = 3
"""The step from which on a stance holds: the one in which the late recording begins."""

SKIPS_GUARDS = "default, guards skipped"
_STANCES: dict[str, dict[str, Any]] = {
    SKIPS_GUARDS: {"stance": "default", "skip_guard_eval_unsafe": True},
    "eager_on_recompile": {"stance": "eager_on_recompile"},
    "force_eager": {"stance": "force_eager"},
    "fail_on_recompile": {"stance": "fail_on_recompile"},
    "eager_then_compile": {"stance": "eager_then_compile"},
}


@contextmanager
def later(how: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Set a stance in a step, for the steps from then on. Yields what a step calls first."""
    steps, before = iter(range(STEPS + 1)), torch.compiler.set_stance("default")

    @torch.compiler.disable
    def begins() -> None:
        if next(steps) == LATER:
            torch.compiler.set_stance(how["stance"], **{key: value for key, value in how.items() if key != "stance"})

    try:
        yield begins
    finally:
        torch.compiler.set_stance(before.stance.stance)


def in_loop(how: dict[str, Any]) -> list[Any]:
    """Train with a function that Dynamo runs eagerly, because of a graph break in a loop, between two graphs."""
    net = Net()

    def repeat(x: Tensor) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x + 1
        return net(x).sin()

    @compiled
    def call(x: Tensor) -> Tensor:
        doubled = x * 2
        torch._dynamo.graph_break()
        return repeat(doubled)

    with later(how) as begins:

        def forward(x: Tensor) -> Tensor:
            begins()
            return call(x)

        return outcome_of(lambda: train(net, forward))


def in_step(how: dict[str, Any], *, autograd_compiled: bool = False, updates: bool = True) -> list[Any]:
    """Train with a compiled step: forward and backward, and with ``updates`` the update."""
    net = Net()
    optimizer = adam(net.parameters())

    @compiled
    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        if updates:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    def losses() -> list[Any]:
        found = []
        for _ in range(STEPS):
            begins()
            found.append(step(batch()).item())
            if not updates:
                optimizer.step()
                optimizer.zero_grad()
        return found

    with torch._dynamo.config.patch(compiled_autograd=autograd_compiled), later(how) as begins:
        return outcome_of(losses)


def updated(how: dict[str, Any]) -> list[Any]:
    """Train with a compiled update outside the model."""
    net, losses = Net(), []
    optimizer = adam(net.parameters())
    update = compiled(optimizer.step)

    def run() -> list[Any]:
        for _ in range(STEPS):
            begins()
            loss = net(batch()).square().mean()
            loss.backward()
            update()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    with later(how) as begins:
        return outcome_of(run)


for _name, _how in _STANCES.items():
    PROGRAMS[f"stance {_name}: graph breaks in a loop"] = partial(in_loop, _how)
    PROGRAMS[f"stance {_name}: forward and backward"] = partial(in_step, _how, updates=False)
    if _name != SKIPS_GUARDS:  # there, torch raises an error in the bare program
        PROGRAMS[f"stance {_name}: a whole step"] = partial(in_step, _how)
        PROGRAMS[f"stance {_name}: an update"] = partial(updated, _how)
PROGRAMS["a whole step, compiled autograd"] = partial(in_step, {"stance": "default"}, autograd_compiled=True)


def configured(run: Callable[[], list[Any]], **settings: Any) -> list[Any]:
    with torch._dynamo.config.patch(**settings):
        return outcome_of(run)


def in_steps_of_one_size() -> list[Any]:
    return whole(Net(breaking))


PROGRAMS |= {
    "error_on_recompile": partial(configured, in_steps_of_one_size, error_on_recompile=True),
    "error_on_recompile: a whole step": partial(
        configured, partial(in_step, {"stance": "default"}), error_on_recompile=True
    ),
    "error_on_recompile: an update": partial(
        configured, partial(updated, {"stance": "default"}), error_on_recompile=True
    ),
    "recompile_limit=1: graph breaks": partial(configured, in_steps_of_one_size, recompile_limit=1),
    "recompile_limit=1: a whole step": partial(
        configured, partial(in_step, {"stance": "default"}), recompile_limit=1, fail_on_recompile_limit_hit=True
    ),
    "guards of modules are not skipped": partial(configured, in_steps_of_one_size, guard_nn_modules=True),
}


def resets() -> list[Any]:
    net = Net(breaking)
    call = compiled(net)

    def forward(x: Tensor) -> Tensor:
        torch.compiler.reset()
        return call(x)

    return train(net, forward)


def in_thread() -> list[Any]:
    net, other, sums = Net(), Net(), []
    call = compiled(other)

    def forward(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: sums.append(call(x.detach()).sum().item()))
        thread.start()
        thread.join()
        return net(x)

    return train(net, forward) + sums


def compiled_in_the_middle() -> list[Any]:
    net, steps = Net(), iter(range(STEPS))

    def forward(x: Tensor) -> Tensor:
        if next(steps) == LATER + 1:
            net.compile(backend=pairs._backend())
        return net(x)

    return train(net, forward)


def exported_in_the_middle() -> list[Any]:
    net, steps, sums = Net(), iter(range(STEPS)), []

    def forward(x: Tensor) -> Tensor:
        if next(steps) == LATER + 1:
            exported = torch.export.export(net, (x,))
            exported = exported.run_decompositions()
            sums.append(exported.module()(x).sum().item())
            sums.append(str(exported.graph))
        return net(x)

    return train(net, forward) + sums


# -- with Inductor: matrix products need no compiler of C++ ------------------------------------------------------------


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))


def artifacts() -> list[Any]:
    net = matrices()
    call = torch.compile(net)
    losses = train(net, call)
    content, info = torch.compiler.save_cache_artifacts()
    torch.compiler.reset()
    loaded = torch.compiler.load_cache_artifacts(content)
    losses += train(net, call)
    kinds = [(kind, len(keys)) for kind, keys in sorted(info.artifacts.items())]
    return losses + kinds + [(kind, len(keys)) for kind, keys in sorted(loaded.artifacts.items())]


def precompiled() -> list[Any]:
    net = matrices()
    with torch._dynamo.config.patch(caching_precompile=True):
        losses = train(net, torch.compile(net))
        torch.compiler.save_cache_artifacts()
        torch.compiler.reset()
        losses += train(net, torch.compile(net))
    shutil.rmtree(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "aotautograd"))  # its names differ from run to run
    return losses


def packaged() -> list[Any]:
    net, steps, sums = matrices(), iter(range(STEPS)), []

    def forward(x: Tensor) -> Tensor:
        if next(steps) == LATER + 1:
            with tempfile.TemporaryDirectory() as place, torch.no_grad():
                exported = torch.export.export(net, (x,))
                path = torch._inductor.aoti_compile_and_package(
                    exported, package_path=str(Path(place, "model.pt2")), inductor_configs={}
                )
                sums.append(torch._inductor.aoti_load_package(path)(x).sum().item())
        return net(x)

    return train(net, forward) + sums


PROGRAMS |= {
    "reset before every step": resets,
    "compiled in a thread while training": in_thread,
    "module.compile() in the middle": compiled_in_the_middle,
    "exported in the middle": exported_in_the_middle,
    "artifacts are saved and loaded": artifacts,
    "caching_precompile": precompiled,
    "packaged in the middle": packaged,
}
