"""The five convolution algorithms of the example: one result, and the bytes that each takes for it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conv_example import ALGORITHMS, MODES, Load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def convolve(convolutions: ModuleType, name: str, mode: str, images: Any, weight: Any) -> Any:
    return convolutions.convolve_layer(convolutions.ALGORITHMS[name], mode, images, weight, nullcontext)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 10), (1, 1), (33, 2), (2, 5)])
def test_every_algorithm_is_the_convolution(
    convolutions: ModuleType, name: str, mode: str, height: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(height * 100 + width)
    images = torch.randn(3, 5, height, width, generator=generator)
    weight = torch.randn(4, 5, 3, 3, generator=generator)
    found = convolve(convolutions, name, mode, images, weight)
    expected = torch.nn.functional.conv2d(images, weight, padding=1)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert float((found - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_input_and_filters_are_left_as_they_were(convolutions: ModuleType, name: str) -> None:
    images, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    before = images.clone(), weight.clone()
    convolve(convolutions, name, "batched", images, weight)
    assert torch.equal(images, before[0])
    assert torch.equal(weight, before[1])


@pytest.mark.parametrize("name", ["direct", "im2col", "fft", "winograd"])
def test_only_the_librarys_own_way_calls_the_librarys_convolution(convolutions: ModuleType, name: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    called = set()

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Listen():
        convolve(convolutions, name, "batched", torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3))
    assert called
    assert not [operator for operator in called if "conv" in operator]
    assert ("addcmul_" if name == "direct" else "bmm") in called


@pytest.mark.parametrize("least", [*range(1, 40), 258])
def test_a_transforms_length_is_even_long_enough_and_fast(load: Load, least: int) -> None:
    length = load("convolutions.fft").choose_length(least)
    assert length >= least
    assert length % 2 == 0
    for factor in (2, 3, 5, 7):
        while length % factor == 0:
            length //= factor
    assert length == 1


def test_the_network_is_vgg19(load: Load) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        network = load("network").VGG19(torch.device("cpu"))
        assert network.forward(network.make_images(2, 256), plain).shape == (2, 1000)
    assert network.weights_bytes == 143_667_240 * 4
    assert [len(block) for block in network.blocks] == [2, 2, 4, 4, 4]


def plain(layer: Any, images: Any) -> Any:
    return torch.nn.functional.conv2d(images, layer.weight, padding=1)


@pytest.fixture(scope="module")
def network(load: Load) -> Any:
    return load("network").VGG19(torch.device("cpu"), width=2)


def test_weights_and_images_are_the_same_every_time(load: Load, network: Any) -> None:
    make = load("network").VGG19
    again = make(torch.device("cpu"), width=2)
    assert all(map(torch.equal, weights(network), weights(again)))
    assert not torch.equal(weights(network)[0], weights(make(torch.device("cpu"), width=2, seed=1))[0])
    other = make(torch.device("cpu"), width=2)
    assert torch.equal(again.make_images(2, 32), other.make_images(2, 32))


def weights(network: Any) -> list[Any]:
    return [layer.weight for layer in network.convolutions]


IMAGE_BYTES = 8 * 16 * 16 * 4


def images_taken(convolutions: ModuleType, name: str, mode: str, count: int, place: Path) -> float:
    """What a layer takes at its peak, its output included, in images of its input's size: recorded by gpuledger."""
    import gpuledger
    from gpuledger.analyze.memory.instant import find_peak

    images, weight = torch.randn(count, 8, 16, 16), torch.randn(8, 8, 3, 3)
    with gpuledger.record("layer", out=place, devices="cpu") as recording:
        convolve(convolutions, name, mode, images, weight)
    rank = recording.run().rank(0)
    peak = find_peak(rank).index
    blocks = rank.table("blocks").to_pylist()
    live = [block for block in blocks if 0 <= block["alloc_index"] <= peak]
    live = [block for block in live if (block["free_requested_index"] or peak + 1) > peak]
    return sum(block["requested_bytes"] for block in live) / IMAGE_BYTES


@pytest.mark.parametrize(
    ("name", "mode", "each"),
    [
        ("direct", "batched", (18 / 16) ** 2 + 1),
        ("im2col", "batched", 9 + 1),
        ("im2col", "loop", 1),
        ("fft", "loop", 0),
        ("winograd", "batched", 4 + 4),
        ("winograd", "loop", 1),
        ("cudnn", "batched", 1),
    ],
)
def test_an_image_more_takes_what_the_algorithm_says(
    convolutions: ModuleType, tmp_path: Path, name: str, mode: str, each: float
) -> None:
    one, four = (images_taken(convolutions, name, mode, count, tmp_path / f"{count}.ledger") for count in (1, 4))
    assert four - one == pytest.approx(3 * each, abs=1e-6)


def test_spectra_of_filters_take_most_of_what_fft_takes(convolutions: ModuleType, tmp_path: Path) -> None:
    one, four = (images_taken(convolutions, "fft", "batched", count, tmp_path / f"{count}.ledger") for count in (1, 4))
    filters = 8 * 18 * 10 * 8 * 8 / IMAGE_BYTES
    assert one == 2 * filters, "the spectra and their copy by frequency"
    assert four - one < filters
