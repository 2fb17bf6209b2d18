"""One followed program, evaluated for every GPU: the same results as an estimate for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from click.testing import CliRunner  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger.cli.predict.estimate import estimate_command  # noqa: E402
from gpuledger.errors import UsageError  # noqa: E402
from gpuledger.model.journal.journal import Action  # noqa: E402
from gpuledger.simulate.catalogue import find_card  # noqa: E402
from gpuledger.simulate.elsewhere import Elsewhere  # noqa: E402
from gpuledger.simulate.estimate.requests_elsewhere import RequestsElsewhere, Row  # noqa: E402
from gpuledger.simulate.traits import Size, Sizing, Traits, listed_traits, traits_of  # noqa: E402

ALLOC, FREE = int(Action.ALLOC), int(Action.FREE_REQUESTED)


def net_of() -> Any:
    """Return layers with sizes that depend on the GPU: a convolution, sums for biases, and products."""
    layers = [torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 96, 3, padding=4, dilation=4)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(2), torch.nn.Linear(64 * 64, 500))


def estimate_on(gpu: str, heads: int = 0) -> Any:
    net = net_of()
    optimizer = torch.optim.AdamW(net.parameters())

    def step(images: Any) -> None:
        optimizer.zero_grad()
        loss = net(images).mean()
        if heads:
            query = torch.zeros(2, heads, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True)
            loss = loss + torch.nn.functional.scaled_dot_product_attention(query, query, query).mean()
        loss.backward()
        optimizer.step()

    return gpuledger.estimate(step, torch.zeros(4, 3, 64, 64), gpu=gpu, steps=2)


def test_one_followed_program_has_the_results_of_an_estimate_for_each_gpu() -> None:
    names = ("h200", "b200", "a100-80gb", "rtx-4060", "t4")
    found = {name: estimate_on(name) for name in names}
    sizes = {name: (one.peak_process_bytes, one.upper_bytes, one.fit.verdict) for name, one in found.items()}
    assert len({one.peak_reserved_bytes for one in found.values()}) > 1
    for one in found.values():
        table = {fit.card.key: (fit.process_bytes, fit.upper_bytes, fit.verdict) for fit in one.others}
        assert {name: table[name] for name in names} == sizes
        assert not any(fit.approximate for fit in one.others)


def test_gpus_with_another_attention_kernel_are_approximate() -> None:
    found = estimate_on("h200", heads=4)
    capability = {fit.card.key: fit.card.compute_capability for fit in found.others}
    assert {fit.card.key for fit in found.others if fit.approximate} == {
        name for name, version in capability.items() if version < (8, 0)
    }
    assert any("v100-32gb" in note and "Approximate" in note for note in found.notes)


def test_a_program_that_asks_for_the_gpu_is_approximate_on_others() -> None:
    def step() -> None:
        torch.zeros(torch.cuda.get_device_capability()[0], device="cuda")

    found = gpuledger.estimate(step, steps=1)
    exact = {traits_of(fit.card) for fit in found.others if not fit.approximate}
    assert exact == {traits_of(find_card("h200"))}


def test_a_size_has_that_of_every_gpu() -> None:
    sizing = Sizing(Traits(132, (9, 0)))
    assert sizing.one(lambda gpu: 7) == 7
    assert not isinstance(sizing.one(lambda gpu: 7), Size)
    several = sizing.many(lambda gpu: (gpu.multiprocessors,) if gpu.multiprocessors < 100 else ())
    assert several == (0,)
    assert isinstance(several[0], Size)
    assert several[0].elsewhere_bytes == tuple(
        gpu.multiprocessors if gpu.multiprocessors < 100 else 0 for gpu in listed_traits()
    )


def test_requests_of_another_gpu_are_changed_added_and_left_out() -> None:
    own, other = listed_traits()[:2]
    count = len(listed_traits())

    def size(own_bytes: int, other_bytes: int) -> Size:
        return Size(own_bytes, (own_bytes, other_bytes, *[own_bytes] * (count - 2)))

    elsewhere = Elsewhere()
    rows: list[Row] = [(ALLOC, 1, 10, 0, 3), (ALLOC, 2, 20, 0, 3), (FREE, 2, 20, 0, -1), (ALLOC, 2, 5, 0, 3)]
    elsewhere.replace(0, size(10, 11))
    elsewhere.replace(1, size(20, 0))
    number = elsewhere.add(3, size(0, 30), 7, 4)
    elsewhere.remove(3, number)
    changes = RequestsElsewhere.of(elsewhere.fact())
    assert changes.rows_on(rows, changes.sizes_on(own)) == rows
    assert changes.rows_on(rows, changes.sizes_on(other)) == [
        (ALLOC, 1, 11, 0, 3), (ALLOC, -number, 30, 7, 4), (FREE, -number, 0, -1, -1), (ALLOC, 2, 5, 0, 3),
    ]  # fmt: skip
    assert RequestsElsewhere.of(None).rows_on(rows, ()) == rows


@pytest.mark.parametrize("words", [("--find-batch", "batch"), ("--require-fit",)])
def test_options_that_need_one_gpu_are_refused_with_all(words: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    done = CliRunner().invoke(estimate_command, ["--gpu", "all", *words, str(script)])
    assert isinstance(done.exception, UsageError)
    assert f"{words[0]} and --gpu all" in str(done.exception)
