"""Five ways to the same convolution: 3×3 (Winograd needs it), stride 1, zero padding that keeps height and width.

An algorithm is a module with two functions. ``transform_weight`` is called once a layer and forward, ``convolve`` once
for all images or once an image. Both belong to the layer's time; ``product`` marks the part that is the convolution
proper, multiply and add, and everything else is overhead.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from . import cudnn, direct, fft, im2col, winograd

Product = Callable[[], AbstractContextManager[None]]
"""Opens the part of a layer that multiplies and adds."""


class Algorithm(Protocol):
    """What the modules of this package have in common."""

    def transform_weight(self, weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return the filters as ``convolve`` takes them; weight float32[out, in, 3, 3]."""

    def convolve(self, images: torch.Tensor, transformed: torch.Tensor, product: Product) -> torch.Tensor:
        """Return float32[images, out, height, width] for images float32[images, in, height, width]."""


ALGORITHMS: dict[str, Algorithm] = {
    "direct": direct,
    "im2col": im2col,
    "fft": fft,
    "winograd": winograd,
    "cudnn": cudnn,
}
MODES = ("batched", "loop")
"""All images of the batch at once, or one after another."""


def convolve_layer(
    algorithm: Algorithm, mode: str, images: torch.Tensor, weight: torch.Tensor, product: Product
) -> torch.Tensor:
    """Return the convolution of ``images`` with ``weight``, without a bias."""
    count, _, height, width = images.shape
    transformed = algorithm.transform_weight(weight, height, width)
    if mode == "batched":
        return algorithm.convolve(images, transformed, product)
    output = images.new_empty(count, weight.shape[0], height, width)
    for image, place in zip(images.split(1), output.split(1), strict=True):
        place.copy_(algorithm.convolve(image, transformed, product))
    return output
