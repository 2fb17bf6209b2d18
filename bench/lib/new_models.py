"""Models chosen before convolutions were measured, and left out of the measurements: the second set to judge by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Draw = Callable[[], tuple[Tensor, ...]]


def build(name: str, batch: int, device: str) -> tuple[nn.Module, Draw]:
    """Return a new model on the CPU and what draws its batches on ``device``."""
    if name == "whisper":
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        return WhisperForConditionalGeneration(WhisperConfig()), partial(_spectra, batch, device)
    if name == "clip":
        from transformers import CLIPConfig, CLIPModel

        return CLIPModel(CLIPConfig()), partial(_captions, batch, device)
    from torchvision import models

    if name == "fcn":
        model = models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=8)
        return model, partial(_images, batch, 256, 8, device)
    if name == "lraspp":
        model = models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=8)
        return model, partial(_images, batch, 256, 8, device)
    if name == "r3d":
        return models.video.r3d_18(), partial(_clips, batch, device)
    makers: dict[str, Callable[[], nn.Module]] = {
        "shufflenet": models.shufflenet_v2_x1_0,
        "mnasnet": models.mnasnet1_0,
        "inception": partial(models.inception_v3, init_weights=False),
        "googlenet": partial(models.googlenet, init_weights=False),
        "maxvit": models.maxvit_t,
        "convnextbase": models.convnext_base,
        "swinv2": models.swin_v2_t,
    }
    pixels = {"inception": 299, "swinv2": 256}.get(name, 224)
    return makers[name](), partial(_images, batch, pixels, 1000, device)


def _images(count: int, pixels: int, classes: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, pixels, pixels).to(device), torch.randint(classes, (count,)).to(device)


def _clips(count: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, 16, 112, 112).to(device), torch.randint(400, (count,)).to(device)


def _spectra(count: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 80, 3000).to(device), torch.randint(50_000, (count, 128)).to(device)


def _captions(count: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, 224, 224).to(device), torch.randint(49_000, (count, 64)).to(device)


def _classify_thrice(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the loss of a model that also classifies on its way."""
    made: Any = model(batch[0])
    return sum(  # type: ignore[no-any-return]
        (0.4 * F.cross_entropy(made[i], batch[1]) for i in range(1, len(made))), F.cross_entropy(made[0], batch[1])
    )


def _transcribe(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(input_features=batch[0], labels=batch[1]).loss  # type: ignore[no-any-return]


def _match(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(pixel_values=batch[0], input_ids=batch[1], return_loss=True).loss  # type: ignore[no-any-return]


def _segment_out(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0])["out"], batch[1].view(-1, 1, 1).expand(-1, 256, 256))


LOSSES: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Tensor]] = {
    "inception": _classify_thrice, "googlenet": _classify_thrice, "whisper": _transcribe, "clip": _match,
    "fcn": _segment_out, "lraspp": _segment_out,
}  # fmt: skip
