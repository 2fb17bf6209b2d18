"""What findings predict of a changed program, against the changed program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger.analyze.overview.findings import find_findings  # noqa: E402
from gpuledger.analyze.overview.peak_facts import PeakFacts  # noqa: E402
from gpuledger.analyze.overview.what_if import grows_with_batch  # noqa: E402
from gpuledger.model.run import Rank  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, LAYERS = 64, 5
Data = Callable[[int], tuple[Tensor, ...]]


class Residual(nn.Module):
    """A pre-normalized block with an addition of its own, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Convolutions(nn.Module):
    """A block of a residual network: it ends with an activation function in place."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.convolution(x)) + x)


class Stack(nn.Module):
    """Blocks between a first and a last layer."""

    def __init__(self, first: nn.Module, block: Callable[[], nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.is_checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        out: Tensor = self.last(x)
        return out


def language() -> tuple[nn.Module, Data]:
    model = Stack(nn.Embedding(500, WIDTH), Residual, nn.Linear(WIDTH, 500))
    return model, lambda count: (torch.randint(500, (count, 64)),)


def images() -> tuple[nn.Module, Data]:
    last = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(16, 10))
    model = Stack(nn.Conv2d(3, 16, 3, padding=1), Convolutions, last)
    return model, lambda count: (torch.randn(count, 3, 16, 16), torch.randint(10, (count,)))


def plain() -> tuple[nn.Module, Data]:
    def block() -> nn.Module:
        return nn.Sequential(
            *(layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())), nn.Dropout(0.1)
        )

    model = Stack(nn.Linear(32, WIDTH), block, nn.Linear(WIDTH, 10))
    return model, lambda count: (torch.randn(64 * count, 32), torch.randint(10, (64 * count,)))


def encoder() -> tuple[nn.Module, Data]:
    layer = functools.partial(nn.TransformerEncoderLayer, WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True)
    last = nn.Sequential(nn.Flatten(), nn.Linear(32 * WIDTH, 10))
    return Stack(nn.Linear(8, WIDTH), layer, last), lambda count: (
        torch.randn(count, 32, 8),
        torch.randint(10, (count,)),
    )


MODELS = {"language": language, "images": images, "plain": plain, "encoder": encoder}


def loss_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy(out.flatten(0, 1), batch[0].flatten()) if len(batch) == 1 else F.cross_entropy(out, batch[1])


def recorded(name: str, place: Path, *, parts: int = 1, change: str = "") -> tuple[Rank, int]:
    """Return the recording of a training, and its peak. ``parts`` batches of a step together have 16 samples."""
    torch.manual_seed(0)
    model, data = MODELS[name]()
    if isinstance(model, Stack):
        model.is_checkpointed = change == "checkpoint"
    optimizer = torch.optim.AdamW(model.parameters())
    with gpuledger.record(out=place, devices="cpu") as recording:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(parts):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=change == "use autocast"):
                    loss = loss_of(model, data(16 // parts))
                loss.backward()
            optimizer.step()
    rank = recording.run().rank()
    return rank, PeakFacts(rank, -1).peak_bytes


@pytest.mark.parametrize("name", MODELS)
def test_a_saving_is_that_of_the_changed_program(name: str, tmp_path: Path) -> None:
    rank, peak = recorded(name, tmp_path / "before")
    for number, action in enumerate(("halve the batch", "checkpoint", "use autocast")):
        (found,) = (finding for finding in find_findings(rank) if finding.action.startswith(action))
        changed, after = recorded(name, tmp_path / str(number), parts=1 if number else 2, change=action)
        assert found.saving_bytes == pytest.approx(peak - after, rel=0.1), action
        assert found.peak_after_bytes == peak - found.saving_bytes
        if number:
            assert not [one for one in find_findings(changed) if one.action.startswith(action)]  # it is in use


def test_checkpointing_with_accumulated_gradients_is_replayed_too(tmp_path: Path) -> None:
    rank, peak = recorded("language", tmp_path / "before", parts=2)
    (found,) = (finding for finding in find_findings(rank) if finding.action.startswith("checkpoint"))
    _, after = recorded("language", tmp_path / "after", parts=2, change="checkpoint")
    assert found.saving_bytes == pytest.approx(peak - after, rel=0.1)


def test_a_batch_of_one_is_not_halved(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gpuledger.record(out=tmp_path / "one", devices="cpu") as recording:
        for _ in range(3):
            model(torch.randn(1, 2000, 64)).square().mean().backward()
            optimizer.step()
    assert not [one for one in find_findings(recording.run().rank()) if one.action.startswith("halve")]


def test_copies_of_weights_that_are_quantized_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model, data = nn.Linear(64, 64), torch.randn(16, 64)
    with gpuledger.record(out=tmp_path / "quantized", devices="cpu", step_on="module") as recording, torch.no_grad():
        model.weight.copy_((model.weight * 127).round() / 127)
        for _ in range(3):
            model(data)
    assert PeakFacts(rank := recording.run().rank(), -1).peak.phase == "setup"
    assert not [one for one in find_findings(rank) if one.action.startswith("halve")]


def test_copies_of_weights_between_calls_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    first, second, data = nn.Linear(64, 64), nn.Linear(64, 64), torch.randn(16, 64)
    with gpuledger.record(out=tmp_path / "averaged", devices="cpu", step_on="module") as recording, torch.no_grad():
        for _ in range(3):
            first(data)
            mean = torch.stack([first.weight, second.weight]).mean(0).half().float()
            first.weight.copy_(mean)
    assert PeakFacts(rank := recording.run().rank(), -1).peak.phase == "between"
    assert not [one for one in find_findings(rank) if one.action.startswith("halve")]


@pytest.mark.parametrize("whole", [True, False], ids=["parts of the data", "one batch"])
def test_data_do_not_depend_on_the_batch_if_a_batch_is_a_part_of_them(whole: bool, tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(4096 if whole else 64, 64)
    with gpuledger.record(out=tmp_path / "parts", devices="cpu") as recording:
        for step in range(3):
            batch = data[64 * step :][:64] if whole else data
            model(batch).square().mean().backward()
            optimizer.step()
    facts = PeakFacts(recording.run().rank(), -1)
    own = facts.lives.allocated_bytes == data.nbytes
    assert (facts.of("input") & own).sum() == 1
    assert bool((grows_with_batch(facts) & facts.of("input") & own).any()) is not whole
