"""Backward code of compiled autograd is on the modules on which it is without compiled autograd."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from recorded import Recorded, record_run
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.nn import functional as F

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # Dynamo reads attributes that warn
    pytest.mark.usefixtures("compiler_caches"),
]

WIDTH, ROWS, STEPS, BLOCKS = 32, 512, 4, 2
_NUMBER = re.compile(r"# AOT ID: .*|kernel_cpp_\w+|/tmp/\S+")
"""What two equal compilations of one process differ in."""
ROW_BYTES = ROWS * WIDTH * 4
"""Bytes of one activation of a block."""


Enable = Callable[[], AbstractContextManager[object]]
"""Switches compiled autograd on."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).square().mean()  # type: ignore[no-any-return]


def whole(net: Net) -> None:
    net.compile()


def each(net: Net) -> None:
    """Compile equal blocks: they share the code of one, and of its backward."""
    for one in (*net.layers, net.head):
        one.compile()


def by_itself() -> AbstractContextManager[object]:
    return compiled_autograd._enable(torch.compile)


def with_own_backend() -> AbstractContextManager[object]:
    """Compile with a function that calls Inductor, and not with the backend of ``torch.compile``."""
    return torch._dynamo.utils.maybe_enable_compiled_autograd(True, fullgraph=False)


def train(
    compile_it: Callable[[Net], None], *, of_autograd: bool, blocks: int = BLOCKS, enable: Enable = by_itself
) -> tuple[Net, list[float]]:
    """Train, with compiled autograd or without."""
    torch._dynamo.reset()
    compiled_autograd.reset()
    torch.manual_seed(0)
    net = Net(blocks)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    compile_it(net)
    losses = []
    for _step in range(STEPS):
        loss = net(torch.randn(ROWS, WIDTH))
        if of_autograd:
            with enable():
                loss.backward()
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return net, losses


def recorded(
    compile_it: Callable[[Net], None], *, of_autograd: bool, blocks: int = BLOCKS, enable: Enable = by_itself
) -> Recorded:
    return record_run(
        lambda _: train(compile_it, of_autograd=of_autograd, blocks=blocks, enable=enable), steps=(2, STEPS)
    )


First = Callable[[Callable[[Net], None], bool], Recorded]


@pytest.fixture(scope="module")
def first_recorded(compiler_caches: None) -> First:
    """The first recording of each way to compile: with compiled autograd first, whose code is in no cache then."""
    runs: dict[tuple[Callable[[Net], None], bool], Recorded] = {}

    def record_once(compile_it: Callable[[Net], None], of_autograd: bool) -> Recorded:
        for on in (True, of_autograd):
            if (compile_it, on) not in runs:
                runs[compile_it, on] = recorded(compile_it, of_autograd=on)
        return runs[compile_it, of_autograd]

    return record_once


@pytest.fixture
def own_cache(compiler_caches: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of the compiler's that holds kernels alone, those of the tests before.

    A kernel with the same name has the same code, and takes longest to compile.
    """
    known, own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]), tmp_path / "inductor"
    for kernel in known.rglob("*.so"):
        place = own / kernel.relative_to(known)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kernel, place)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    return own


def made_in_backward(run: Recorded) -> Counter[str]:
    """Return the bytes that the backward of step 3 allocates, except for gradients of weights, by module."""
    found: Counter[str] = Counter()
    for block in run.blocks:
        if block.phase == "backward" and block.step == 3 and block.category != "gradient":
            found[block.module] += block.bytes
    return found


def held_at_peak(run: Recorded) -> Counter[str]:
    """Return the bytes of each module at the peak."""
    events = []
    for block in run.blocks:
        events.append((block.alloc_index, block.bytes, block.module))
        if block.free_index is not None:
            events.append((block.free_index, -block.bytes, block.module))
    held: Counter[str] = Counter()
    found = held.copy()
    for _, change, module in sorted(events):
        held[module] += change
        if held.total() > found.total():
            found = held.copy()
    return found


def test_backward_of_a_model_is_on_its_modules(first_recorded: First) -> None:
    runs = [first_recorded(whole, on) for on in (False, True)]
    plain, found = map(made_in_backward, runs)
    assert found[""] == plain[""] == 4  # the gradient of the loss
    assert found["layers.1.down"] == plain["layers.1.down"] == 4 * ROW_BYTES
    assert found["layers.0.up"] == plain["layers.0.up"] == ROW_BYTES
    assert found.total() <= plain.total() + ROW_BYTES
    peak = held_at_peak(runs[1])
    assert peak[""] <= 0.03 * peak.total()


def test_backward_that_a_backend_of_its_own_compiles_is_on_its_modules(first_recorded: First) -> None:
    found = made_in_backward(recorded(whole, of_autograd=True, enable=with_own_backend))
    assert found["layers.1.down"] == 4 * ROW_BYTES
    assert found == made_in_backward(first_recorded(whole, True))


@pytest.mark.parametrize("enable", [by_itself, with_own_backend])
def test_backward_of_operators_with_several_results_is_on_their_modules(enable: Enable) -> None:
    """Such as a convolution's. A constant, such as that of a ReLU, is of no unknown module.

    A cache that was filled without compiled autograd has constants in another form.
    """

    class Picture(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.view(-1, 1, WIDTH, WIDTH)).square().mean()

    def program(_: object, *, of_autograd: bool) -> None:
        torch._dynamo.reset()
        compiled_autograd.reset()
        net = Picture()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net.compile()
        for _step in range(STEPS):
            loss = net(torch.ones(ROWS, WIDTH))
            with enable() if of_autograd else nullcontext():
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    run = record_run(lambda path: program(path, of_autograd=True), steps=(2, STEPS))
    plain = record_run(lambda path: program(path, of_autograd=False), steps=(2, STEPS))
    torch._inductor.utils.clear_caches()
    from_cache = record_run(lambda path: program(path, of_autograd=True), steps=(2, STEPS))
    side = WIDTH - 2
    assert made_in_backward(plain)["2"] >= 4 * ROWS // WIDTH * 4 * side * side
    for found in (run, from_cache):
        assert made_in_backward(found)["2"] == made_in_backward(plain)["2"]
        assert [note for note in found.manifest.notes if note.startswith("Compiled autograd")] == []


def test_backward_of_equal_blocks_that_share_code_is_on_the_block_that_it_is_of(first_recorded: First) -> None:
    plain, found = (made_in_backward(first_recorded(each, on)) for on in (False, True))
    # the code of all blocks is one graph now, so that a block can use the memory of the one before
    assert found.keys() <= plain.keys()
    assert [found[f"layers.{number}.up"] for number in range(BLOCKS)] == BLOCKS * [ROW_BYTES]
    assert [plain[f"layers.{number}.up"] for number in range(BLOCKS)] == BLOCKS * [ROW_BYTES]
    assert found[""] <= 3 * ROW_BYTES  # the loss is not compiled


def test_backward_in_a_later_process_is_on_the_same_modules(first_recorded: First) -> None:
    """Compilations after the first take their code from Inductor's cache."""
    first, later = first_recorded(whole, True), recorded(whole, of_autograd=True)
    assert made_in_backward(later) == made_in_backward(first)
    assert later.manifest.compiled_unread is None


def test_backward_from_a_cache_that_was_filled_without_compiled_autograd_is_on_its_modules(
    first_recorded: First,
) -> None:
    first = first_recorded(each, True)
    first_recorded(each, False)
    torch._inductor.utils.clear_caches()
    torch._dynamo.utils.counters.clear()
    later = recorded(each, of_autograd=True)
    assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] > 0
    assert made_in_backward(later) == made_in_backward(first)


def test_backward_of_eager_code_is_said_to_have_no_modules(first_recorded: First) -> None:
    run = recorded(lambda net: net.layers[1].compile(), of_autograd=True)
    (note,) = [note for note in run.manifest.notes if note.startswith("Compiled autograd")]
    assert "code that is not compiled" in note
    found = made_in_backward(run)
    assert found["layers.1.up"] + found["layers.1.down"] >= ROW_BYTES
    assert found[""] > ROW_BYTES
    assert not any("Compiled autograd" in note for note in first_recorded(whole, True).manifest.notes)


def test_a_model_that_is_not_compiled_at_all_is_recorded() -> None:
    run = recorded(lambda _net: None, of_autograd=True, blocks=1)
    assert [note for note in run.manifest.notes if not note.startswith("Compiled autograd")] == []
    assert [step for step, _, is_recorded in run.steps if is_recorded] == [2, 3, 4]
    assert made_in_backward(run)[""] > ROW_BYTES


def test_code_of_compiled_autograd_from_a_cache_of_a_bare_run_is_said_to_have_no_modules(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._inductor.utils.clear_caches()
    train(whole, of_autograd=True, blocks=1)
    torch._inductor.utils.clear_caches()
    run = recorded(whole, of_autograd=True, blocks=1)
    assert made_in_backward(run)[""] >= ROW_BYTES
    assert [note.partition(" ")[0] for note in run.manifest.notes] == ["A", "Compiled"]
    assert not any("attributed to the module that was compiled" in note for note in run.manifest.notes)
    assert "Module" not in {one["class_name"] for one in run.tables["modules"]}


@pytest.mark.parametrize("enable", [by_itself, with_own_backend])
def test_the_compiler_does_what_it_does_alone(enable: Enable, own_cache: Path) -> None:
    outcomes = []
    for run in (train, recorded):
        torch._inductor.utils.clear_caches()
        torch._dynamo.utils.counters.clear()
        run(whole, of_autograd=True, blocks=1, enable=enable)
        counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "compiled_autograd")}
        made = [file for file in own_cache.rglob("*") if file.is_file()]
        codes = [_NUMBER.sub("", file.read_text(encoding="utf-8")) for file in made if file.suffix == ".py"]
        outcomes.append((counters, sorted(codes)))
        for file in made:
            if file.suffix != ".so":
                file.unlink()
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][1]) == 2
