"""A plain training script for one combination of the grid; it knows nothing of who may be watching.

Run on a GPU it tells the truth, under ``gpuledger estimate`` the same lines are the estimate.

Usage: python bench/lib/grid_train.py gpt2-bf16-adamw-8
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import new_models
import torch
from grid_models import Dlrm, GruTagger, ResidualMlp, Speech, Unet
from models import MODELS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Combination:
    """One training: what runs, how many samples a step, in which precision, with which optimizer."""

    model: str
    batch: int
    precision: str = "fp32"
    optimizer: str = "adamw"
    checkpointing: bool = False
    clip: bool = False
    accumulate: int = 1
    allocator: str = ""

    @property
    def name(self) -> str:
        """Return the name the combination goes by."""
        marks = ["ckpt"] * self.checkpointing + ["clip"] * self.clip + [f"acc{self.accumulate}"] * (self.accumulate > 1)
        setting = [self.allocator.partition(":")[0].replace("_", "")] if self.allocator else []
        return "-".join([self.model, self.precision, self.optimizer, str(self.batch), *marks, *setting])


COMBINATIONS = (
    Combination("resnet50", 32, "fp32", "momentum"),
    Combination("resnet50", 128, "bf16", "adamw"),
    Combination("resnet50", 64, "fp16", "sgd"),
    Combination("resnet50", 8, "fp32", "adam"),
    Combination("vgg16", 32, "fp32", "momentum"),
    Combination("vgg16", 8, "bf16", "adam"),
    Combination("vit", 32, "bf16", "adamw"),
    Combination("vit", 8, "fp32", "fused"),
    Combination("vit", 64, "bf16", "adamw", checkpointing=True),
    Combination("gpt2", 8, "bf16", "adamw"),
    Combination("gpt2", 4, "fp32", "fused", clip=True),
    Combination("gpt2", 16, "bf16", "adamw", checkpointing=True),
    Combination("gpt2", 2, "fp16", "adamw", clip=True),
    Combination("bert", 16, "fp32", "adam"),
    Combination("bert", 32, "bf16", "adamw", clip=True),
    Combination("bert", 64, "fp32", "sgd", checkpointing=True),
    Combination("llama", 4, "pure-bf16", "adamw"),
    Combination("llama", 1, "pure-bf16", "sgd"),
    Combination("llama", 8, "pure-bf16", "fused", checkpointing=True),
    Combination("lstm", 32, "fp32", "adam"),
    Combination("lstm", 128, "bf16", "adamw"),
    Combination("neumf", 65_536, "fp32", "adam"),
    Combination("neumf", 4_096, "fp32", "adamw"),
    Combination("transformer", 16, "fp32", "adamw"),
    Combination("transformer", 64, "bf16", "adamw", accumulate=2),
    Combination("gan", 256, "fp32", "adam"),
    Combination("convnext", 32, "bf16", "adamw"),
    Combination("swin", 16, "fp32", "adamw"),
    Combination("densenet", 32, "fp32", "momentum"),
    Combination("t5", 8, "fp32", "adamw"),
    Combination("gru", 64, "fp32", "adam"),
    Combination("unet", 8, "bf16", "adam"),
    Combination("gpt2", 8, "bf16", "adamw", allocator="expandable_segments:True"),
    Combination("resnet50", 32, "fp32", "momentum", allocator="expandable_segments:True"),
    Combination("bert", 16, "fp32", "adam", allocator="roundup_power2_divisions:8"),
    Combination("llama", 4, "pure-bf16", "adamw", allocator="max_split_size_mb:64"),
)
"""The grid: models of the published table and others, precisions, optimizers, batches, allocator settings."""

HELD_OUT = (
    Combination("mobilenet", 64, "bf16", "adamw"),
    Combination("efficientnet", 32, "fp32", "momentum"),
    Combination("regnet", 64, "fp16", "sgd"),
    Combination("deeplab", 4, "fp32", "momentum"),
    Combination("mixer", 32, "bf16", "adamw"),
    Combination("distilbert", 16, "fp32", "adamw"),
    Combination("opt", 4, "bf16", "adamw", clip=True),
    Combination("qwen", 2, "pure-bf16", "fused"),
    Combination("bart", 8, "fp32", "adam"),
    Combination("speech", 16, "bf16", "adam"),
    Combination("dlrm", 8_192, "fp32", "sgd"),
    Combination("resmlp", 4_096, "fp32", "adamw", accumulate=2),
)
"""Models that no rule was written in the light of: estimated once, after the rules; their errors prompted new ones."""

NEW = (
    Combination("shufflenet", 64, "fp32", "momentum"),
    Combination("inception", 32, "bf16", "adamw"),
    Combination("googlenet", 64, "fp16", "sgd"),
    Combination("mnasnet", 64, "fp32", "adam"),
    Combination("maxvit", 16, "bf16", "adamw"),
    Combination("convnextbase", 8, "fp32", "adamw"),
    Combination("swinv2", 16, "bf16", "adamw"),
    Combination("fcn", 4, "fp32", "momentum"),
    Combination("lraspp", 8, "bf16", "adam"),
    Combination("r3d", 4, "fp32", "sgd"),
    Combination("whisper", 8, "fp16", "adamw"),
    Combination("clip", 16, "bf16", "adamw"),
)
"""Models estimated before they were ever trained on the GPU, by rules that had not seen one of their convolutions."""


EVERYTHING = (*COMBINATIONS, *HELD_OUT, *NEW)


def _images(count: int, pixels: int, classes: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 3, pixels, pixels).to(device), torch.randint(classes, (count,)).to(device)


def _tokens(count: int, length: int, vocabulary: int, device: str) -> tuple[Tensor, ...]:
    return (torch.randint(vocabulary, (count, length)).to(device),)


def _samples(count: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 1, 32_000).to(device), torch.randint(32, (count,)).to(device)


def _clicks(count: int, device: str) -> tuple[Tensor, ...]:
    words, dense = torch.randint(200_000, (count, 8, 4)), torch.randn(count, 13)
    return words.to(device), dense.to(device), torch.rand(count).to(device)


def _rows(count: int, device: str) -> tuple[Tensor, ...]:
    return torch.randn(count, 256).to(device), torch.randint(10, (count,)).to(device)


def _classify(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _own_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(batch[0], labels=batch[0]).loss  # type: ignore[no-any-return]


def _next_token(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[0].flatten())


def _tag(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[0].flatten() % 64)


def _rank_pairs(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])


def _segment(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1].view(-1, 1, 1).expand(-1, 256, 256))


def _segment_out(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0])["out"], batch[1].view(-1, 1, 1).expand(-1, 256, 256))


LOSSES: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Tensor]] = {
    "gpt2": _own_loss, "bert": _own_loss, "llama": _own_loss, "t5": _own_loss,
    "lstm": _next_token, "transformer": _next_token, "gru": _tag, "neumf": _rank_pairs, "unet": _segment,
    "distilbert": _own_loss, "opt": _own_loss, "qwen": _own_loss, "bart": _own_loss,
    "dlrm": _rank_pairs, "deeplab": _segment_out, **new_models.LOSSES,
}  # fmt: skip


def build(name: str, batch: int, device: str) -> tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]:
    """Return a model on ``device`` and what draws its batches."""
    if name in ("convnext", "swin", "densenet"):
        from torchvision import models

        make = {"convnext": models.convnext_tiny, "swin": models.swin_t, "densenet": models.densenet121}[name]
        return make().to(device), partial(_images, batch, 224, 1000, device)
    if name == "t5":
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(d_model=512, num_layers=6, num_heads=8, d_ff=2048, decoder_start_token_id=0)
        return T5ForConditionalGeneration(config).to(device), partial(_tokens, batch, 256, 32_000, device)
    if name == "gru":
        return GruTagger().to(device), partial(_tokens, batch, 128, 10_000, device)
    if name == "unet":
        return Unet().to(device), partial(_images, batch, 256, 8, device)
    if name in MODELS:
        workload = MODELS[name].build(device, batch_size=batch)
        return workload.models[0], workload.make_batch
    is_new = name in {one.model for one in NEW}
    model, make_batch = (new_models.build if is_new else _build_held_out)(name, batch, device)
    return model.to(device), make_batch


def _build_held_out(name: str, batch: int, device: str) -> tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]:
    """Return a model that no rule was written for, and what draws its batches."""
    own: dict[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, ...]]]] = {
        "speech": (Speech, _samples), "dlrm": (Dlrm, _clicks), "resmlp": (ResidualMlp, _rows)
    }  # fmt: skip
    if name in own:
        return own[name][0](), partial(own[name][1], batch, device)
    if name == "mixer":
        import timm

        return timm.create_model("mixer_b16_224", pretrained=False), partial(_images, batch, 224, 1000, device)
    if name in ("distilbert", "opt", "qwen", "bart"):
        return _build_text(name), partial(_tokens, batch, 512 if name == "qwen" else 256, 30_000, device)
    from torchvision import models

    if name == "deeplab":
        make = models.segmentation.deeplabv3_resnet50
        return make(weights=None, weights_backbone=None, num_classes=8), partial(_images, batch, 256, 8, device)
    builders = {
        "mobilenet": models.mobilenet_v3_large, "efficientnet": models.efficientnet_b0, "regnet": models.regnet_y_400mf
    }  # fmt: skip
    return builders[name](), partial(_images, batch, 224, 1000, device)


def _build_text(name: str) -> nn.Module:
    import transformers as t

    if name == "distilbert":
        return t.DistilBertForMaskedLM(t.DistilBertConfig())  # type: ignore[no-any-return]
    if name == "opt":
        return t.OPTForCausalLM(t.OPTConfig())  # type: ignore[no-any-return]
    if name == "bart":
        layers = {"encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
        return t.BartForConditionalGeneration(t.BartConfig(d_model=768, **layers))  # type: ignore[no-any-return]
    sizes = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4}
    return t.Qwen2ForCausalLM(t.Qwen2Config(vocab_size=32_000, intermediate_size=2816, **sizes))  # type: ignore[no-any-return]


def _use_checkpoints(model: nn.Module) -> None:
    """Have every large block recompute its activations in backward."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    for layer in model.encoder.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _make_optimizer(name: str, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, 0.01, momentum=0.9 if name == "momentum" else 0.0)
    if name == "adam":
        return torch.optim.Adam(parameters, 1e-4)
    return torch.optim.AdamW(parameters, 1e-4, fused=True if name == "fused" else None)


def train(combination: Combination, device: str, steps: int) -> None:
    """Train ``steps`` steps."""
    if combination.model == "gan":
        workload = MODELS["gan"].build(device, batch_size=combination.batch)
        for _ in range(steps):
            workload.train(workload.make_batch())
        return
    model, make_batch = build(combination.model, combination.batch, device)
    if combination.precision == "pure-bf16":
        model = model.to(torch.bfloat16)
    model.train()
    if combination.checkpointing:
        _use_checkpoints(model)
    optimizer = _make_optimizer(combination.optimizer, model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler(device, enabled=combination.precision == "fp16")
    loss_of = LOSSES.get(combination.model, _classify)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(combination.accumulate):
            with _autocast(combination.precision, device):
                loss = loss_of(model, make_batch())
            scaler.scale(loss / combination.accumulate).backward()
        if combination.clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        print(f"loss {loss.item():.3f}")


def _autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device, dtype=kinds[precision]) if precision in kinds else nullcontext()


def process_bytes() -> int | None:
    """Return the bytes the driver says this process holds; None where it does not."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        held = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except Exception:
        return None
    found: int | None = held.get(os.getpid())
    return found


def main() -> None:
    """Train and print one line of JSON: the peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("combination", choices=[one.name for one in EVERYTHING])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    train(
        next(one for one in EVERYTHING if one.name == arguments.combination),
        arguments.device,
        arguments.steps,
    )
    on_card = arguments.device == "cuda"
    printed = {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_card else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_card else None,
        "process_bytes": process_bytes() if on_card else None,
    }
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
