"""The trainings that xMem's authors measured, as programs: model, optimizer, batch, and place of ``zero_grad``.

Images are 86 x 86 pixels of CIFAR-10. Texts are lines of WikiText-2, padded to the longest line of a batch, at most
128 tokens. The lines are not available here: every batch has 128 tokens, which is almost certain from a batch size
of 8 on and an assumption below that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

STEPS, PIXELS, TOKENS = 4, 86, 128
TORCHVISION = {
    "VGG16": "vgg16", "VGG19": "vgg19", "ResNet101": "resnet101", "ResNet152": "resnet152",
    "MobileNetV2": "mobilenet_v2", "ConvNeXtTiny": "convnext_tiny", "ConvNeXtBase": "convnext_base",
    "RegNetX400MF": "regnet_x_400mf", "RegNetY400MF": "regnet_y_400mf",
}  # fmt: skip
TEN_CLASSES = {
    "MnasNet": "mnasnet1_0", "MobeNetV3Large": "mobilenet_v3_large", "MobeNetV3Small": "mobilenet_v3_small",
}  # fmt: skip


def build(name: str) -> nn.Module:
    """Return a model with random weights."""
    if name in TORCHVISION or name in TEN_CLASSES:
        from torchvision import models

        if name in TORCHVISION:
            return models.get_model(TORCHVISION[name], weights=None)  # type: ignore[no-any-return]
        return models.get_model(TEN_CLASSES[name], weights=None, num_classes=10)  # type: ignore[no-any-return]
    import transformers

    kind, sizes = TEXT_MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**sizes)
    of_text = "ForConditionalGeneration" if kind == "T5" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    made = getattr(transformers, f"{kind}{of_text}")
    return made._from_config(config)  # type: ignore[no-any-return]  # chooses the attention as from_config does


def _gpt2(layers: int, positions: int = 1024) -> tuple[str, dict[str, Any]]:
    return "GPT2", {"n_layer": layers, "n_positions": positions, "pad_token_id": 50256}


def _t5(width: int, inner: int, layers: int, heads: int) -> tuple[str, dict[str, Any]]:
    return "T5", {
        "d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads, "decoder_start_token_id": 0,
    }  # fmt: skip


def _opt(**sizes: Any) -> tuple[str, dict[str, Any]]:
    return "OPT", sizes


TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert/distilgpt2": _gpt2(6),
    "openai-community/gpt2": _gpt2(12),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2", {"n_layer": 10, "n_positions": 2048, "n_inner": 3072, "activation_function": "gelu"},
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeo",
        {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
    ),
    "facebook/opt-125m": _opt(),
    "facebook/opt-350m": _opt(
        hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
        do_layer_norm_before=False,
    ),
    "T5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2",
        {
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": False, "bos_token_id": 151643,
            "eos_token_id": 151643,
        },
    ),
}  # fmt: skip
"""Name on the hub -> class and its configuration there, where it differs from the class's own."""


def batches(name: str, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and labels on the CPU."""
    for _ in range(STEPS):
        if name in TEXT_MODELS:
            ids = torch.randint(3, 1000, (count, TOKENS))
            yield {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids.clone()
        else:
            yield torch.randn(count, 3, PIXELS, PIXELS), torch.randint(10, (count,))


def _image_step(model: nn.Module, inputs: Any, labels: Any) -> tuple[Any, Any]:
    outputs = model(inputs.to("cuda"))
    return outputs, nn.functional.cross_entropy(outputs, labels.to("cuda"))


def _text_step(model: nn.Module, inputs: Any, labels: Any) -> tuple[Any, Any]:
    moved = {key: value.to("cuda") for key, value in inputs.items()}
    outputs = model(**moved, labels=labels.to("cuda"))
    return outputs, outputs.loss


def train(name: str, optimizer_name: str, count: int, zero_grad: int) -> None:
    """Train for four steps, in the order of xMem's programs.

    Args:
        name: A model.
        optimizer_name: A class of ``torch.optim``.
        count: Batch size.
        zero_grad: 0 before forward, 1 between forward and backward, 2 after the optimizer.
    """
    model = build(name).train()
    step: Callable[..., tuple[Any, Any]] = _text_step if name in TEXT_MODELS else _image_step
    is_text = name in TEXT_MODELS
    if not is_text:
        model = model.to("cuda")
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.001)
    if is_text:
        model = model.to("cuda")
    for inputs, labels in batches(name, count):
        if zero_grad == 0:
            optimizer.zero_grad()
        outputs, loss = step(model, inputs, labels)
        if zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not is_text:
            torch.max(outputs, 1)
        if zero_grad == 2:
            optimizer.zero_grad()


def main() -> None:
    """Run one training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--zero-grad", type=int, default=0, choices=(0, 1, 2))
    options = parser.parse_args()
    train(options.model, options.optimizer, options.batch_size, options.zero_grad)


if __name__ == "__main__":
    main()
