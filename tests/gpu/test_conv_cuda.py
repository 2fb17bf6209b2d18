"""The five convolution algorithms on a real GPU: they agree with cuDNN, and their bytes are counted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from folders import EXAMPLES

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
EXAMPLE = EXAMPLES / "conv_algorithms"
CHANNELS, SIDE, IMAGES = 64, 64, 4
IMAGE_BYTES = CHANNELS * SIDE * SIDE * 4


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        module = importlib.import_module("measure")
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        module.use_exact_float32()
        yield module
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    for name in [name for name in sys.modules if name.partition(".")[0] in ("convolutions", "network", "measure")]:
        del sys.modules[name]


@pytest.mark.parametrize("mode", ["batched", "loop"])
@pytest.mark.parametrize("name", ["direct", "im2col", "fft", "winograd", "cudnn"])
def test_on_the_card_every_layer_is_cudnns_within_a_thousandth(measure: ModuleType, name: str, mode: str) -> None:
    network = importlib.import_module("network").VGG19(torch.device("cuda"), width=8)
    differences = measure.LayerDifferences(name, mode)
    with torch.inference_mode():
        network.forward(network.make_images(2, 64), differences.convolve)
    assert len(differences.differences) == 16
    assert max(differences.differences) < 1e-3


@pytest.mark.parametrize(
    ("name", "mode", "images_taken"),
    [
        ("im2col", "batched", (9 + 1) * IMAGES),
        ("im2col", "loop", 9 + 1 + IMAGES),
        ("direct", "batched", 2 * IMAGES),
    ],
)
def test_bytes_taken_are_those_of_the_algorithm(measure: ModuleType, name: str, mode: str, images_taken: float) -> None:
    network = importlib.import_module("network")
    weight = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda")
    layer = network.Layer("layer", weight, torch.zeros(CHANNELS, device="cuda"))
    images = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, device="cuda")
    with torch.inference_mode():
        measure.LayerTimes(name, mode, True).convolve(layer, images)
        torch.cuda.empty_cache()
        memory = measure.LayerMemory(name, mode)
        memory.convolve(layer, images)
    (row,) = memory.layers
    assert row.taken_bytes == pytest.approx(images_taken * IMAGE_BYTES, rel=0.1)
    assert row.peak_bytes == memory.standing_bytes + row.taken_bytes


def test_the_product_stage_is_inside_the_layers_time(measure: ModuleType) -> None:
    network = importlib.import_module("network").VGG19(torch.device("cuda"), width=8)
    with torch.inference_mode():
        result = measure.measure(network, network.make_images(2, 64), "fft", "loop", 3, 0.0, 10.0)
    layers = result["layers"]
    assert all(0 < conv < total for conv, total in zip(layers["conv_ms"], layers["total_ms"], strict=True))
    assert result["peak_bytes"] >= max(layers["peak_bytes"]) > result["standing_bytes"] > network.weights_bytes
