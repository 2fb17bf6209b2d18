"""The trainings that are measured: eight models of the published tables, a GAN, and a small Transformer for CPUs.

Weights are random and so is the data, drawn anew for every batch and never zeros. Batch sizes and precisions are those
of the first measurements (one H200, November 2026), so that figures can be compared from version to version.
torchvision and transformers are imported only by the models that need them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

Batch = tuple[Tensor, ...]
USERS, ITEMS = 138_493, 26_744
"""MovieLens-20M: users who rated, films rated."""


@dataclass(frozen=True)
class Workload:
    """One training, ready to run.

    ``make_batch`` draws a batch on the CPU and moves it to the device, as a loader would; ``train`` takes one step.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    make_batch: Callable[[], Batch]
    train: Callable[[Batch], None]

    def stepper(self, batches: int = 4) -> Callable[[], None]:
        """Return a function that trains one step on the next of ``batches`` batches already on the device."""
        waiting = itertools.cycle([self.make_batch() for _ in range(batches)])
        return lambda: self.train(next(waiting))


@dataclass(frozen=True)
class Spec:
    """One entry of :data:`MODELS`: ``build(device, small, batch_size)`` makes the workload.

    ``small`` shrinks the model for tests on a CPU; ``batch_size`` 0 takes the model's own.
    """

    title: str
    needs: str
    make: Callable[[str, bool, int], Workload]

    def build(self, device: str = "cuda", *, small: bool = False, batch_size: int = 0) -> Workload:
        """Return the workload on ``device``."""
        return self.make(device, small, batch_size)


def _supervised(
    model: nn.Module,
    optimizer: Optimizer,
    make_batch: Callable[[], Batch],
    loss_of: Callable[[nn.Module, Batch], Tensor],
    amp_device: str | None = None,
) -> Workload:
    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast(amp_device, dtype=torch.bfloat16) if amp_device else nullcontext()

    def train(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()

    model.train()
    return Workload((model,), (optimizer,), make_batch, train)


def _images(device: str, count: int, pixels: int, classes: int) -> Batch:
    return torch.randn(count, 3, pixels, pixels).to(device), torch.randint(classes, (count,)).to(device)


def _tokens(device: str, count: int, length: int, vocabulary: int) -> Batch:
    return (torch.randint(vocabulary, (count, length)).to(device),)


def _classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss a transformers model computes itself."""
    return model(batch[0], labels=batch[0]).loss  # type: ignore[no-any-return]


def _next_token(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[0].flatten())


def _resnet50(device: str, small: bool, batch_size: int) -> Workload:
    from torchvision.models import resnet18, resnet50

    model = (resnet18(num_classes=10) if small else resnet50()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch = partial(_images, device, batch_size or (2 if small else 32), 32 if small else 224, 10 if small else 1000)
    return _supervised(model, optimizer, batch, _classify)


def _vgg16(device: str, small: bool, batch_size: int) -> Workload:
    from torchvision.models import vgg11, vgg16

    model = (vgg11(num_classes=10) if small else vgg16()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    batch = partial(_images, device, batch_size or (2 if small else 32), 32 if small else 224, 10 if small else 1000)
    return _supervised(model, optimizer, batch, _classify)


def _vit(device: str, small: bool, batch_size: int) -> Workload:
    from torchvision.models import VisionTransformer, vit_b_16

    tiny = partial(VisionTransformer, 32, 16, 2, 2, 64, 128)
    model = (tiny() if small else vit_b_16()).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = partial(_images, device, batch_size or (2 if small else 32), 32 if small else 224, 1000)
    return _supervised(model, optimizer, batch, _classify, amp_device=torch.device(device).type)


def _gpt2(device: str, small: bool, batch_size: int) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500) if small else GPT2Config()
    model = GPT2LMHeadModel(config).to(device)
    batch = partial(_tokens, device, batch_size or (2 if small else 8), 32 if small else 512, config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters())
    return _supervised(model, optimizer, batch, _own_loss, amp_device=torch.device(device).type)


def _bert(device: str, small: bool, batch_size: int) -> Workload:
    from transformers import BertConfig, BertForMaskedLM

    shrunk = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=500, **shrunk) if small else BertConfig()
    model = BertForMaskedLM(config).to(device)
    batch = partial(_tokens, device, batch_size or (2 if small else 16), 32 if small else 256, config.vocab_size)
    return _supervised(model, torch.optim.Adam(model.parameters()), batch, _own_loss)


def _llama(device: str, small: bool, batch_size: int) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64 if small else 1024,
        intermediate_size=128 if small else 2816,
        num_hidden_layers=2 if small else 12,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=2 if small else 4,
        vocab_size=500 if small else 32_000,
    )
    model = LlamaForCausalLM(config).to(device).to(torch.bfloat16)
    batch = partial(_tokens, device, batch_size or (2 if small else 4), 32 if small else 1024, config.vocab_size)
    return _supervised(model, torch.optim.AdamW(model.parameters()), batch, _own_loss)


class LstmLanguageModel(nn.Module):
    """Embedding, two LSTM layers, a linear head over the vocabulary."""

    def __init__(self, vocabulary: int, embedded: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedded)
        self.lstm = nn.LSTM(embedded, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, [batch, length, vocabulary]."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)  # type: ignore[no-any-return]


def _lstm(device: str, small: bool, batch_size: int) -> Workload:
    vocabulary = 500 if small else 20_000
    model = LstmLanguageModel(vocabulary, 32 if small else 512, 64 if small else 1024).to(device)
    batch = partial(_tokens, device, batch_size or (4 if small else 32), 16 if small else 64, vocabulary)
    return _supervised(model, torch.optim.Adam(model.parameters()), batch, _next_token)


class NeuMF(nn.Module):
    """Neural matrix factorization (He et al., 2017): a factorized and a layered branch, joined by one linear layer."""

    def __init__(self, users: int, items: int, factors: int, hidden: int) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(users, factors)
        self.item_factors = nn.Embedding(items, factors)
        self.user_hidden = nn.Embedding(users, hidden)
        self.item_hidden = nn.Embedding(items, hidden)
        self.layers = nn.Sequential(
            nn.Linear(2 * hidden, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, factors),
            nn.ReLU(),
        )
        self.score = nn.Linear(2 * factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return one logit a pair, [pairs, 1]."""
        layered = self.layers(torch.cat((self.user_hidden(user), self.item_hidden(item)), 1))
        return self.score(torch.cat((self.user_factors(user) * self.item_factors(item), layered), 1))  # type: ignore[no-any-return]


def _neumf(device: str, small: bool, batch_size: int) -> Workload:
    users, items = (1000, 500) if small else (USERS, ITEMS)
    model = NeuMF(users, items, *((8, 16) if small else (64, 128))).to(device)
    pairs = batch_size or (256 if small else 65_536)

    def make_batch() -> Batch:
        drawn = torch.randint(users, (pairs,)), torch.randint(items, (pairs,)), torch.rand(pairs, 1)
        return tuple(tensor.to(device) for tensor in drawn)

    def loss_of(net: nn.Module, batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0], batch[1]), batch[2])

    return _supervised(model, torch.optim.Adam(model.parameters()), make_batch, loss_of)


class TransformerLanguageModel(nn.Module):
    """torch's own encoder layers with a causal mask: a Transformer that needs no other library."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, [batch, length, vocabulary]."""
        hidden = self.embedding(tokens) + self.positions
        return self.head(self.encoder(hidden, mask=self.mask, is_causal=True))  # type: ignore[no-any-return]


def _transformer(device: str, small: bool, batch_size: int) -> Workload:
    vocabulary, length = (500, 16) if small else (20_000, 256)
    width, layers, heads = (32, 2, 2) if small else (512, 6, 8)
    model = TransformerLanguageModel(vocabulary, width, layers, heads, length).to(device)
    batch = partial(_tokens, device, batch_size or (4 if small else 16), length, vocabulary)
    return _supervised(model, torch.optim.AdamW(model.parameters()), batch, _next_token)


class Generator(nn.Sequential):
    """DCGAN's generator: noise [batch, noise, 1, 1] to images [batch, 3, 32, 32]."""

    def __init__(self, noise: int, width: int) -> None:
        layers: list[nn.Module] = []
        sizes = [noise, 4 * width, 2 * width, width]
        for index, (before, after) in enumerate(itertools.pairwise(sizes)):
            stride, padding = (1, 0) if index == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after)]
            layers.append(nn.ReLU())
        super().__init__(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


class Discriminator(nn.Sequential):
    """DCGAN's discriminator: images [batch, 3, 32, 32] to logits [batch, 1]."""

    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([3, width, 2 * width, 4 * width]):
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.LeakyReLU(0.2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(4 * width * 16, 1))


def _gan(device: str, small: bool, batch_size: int) -> Workload:
    count, noise, width = batch_size or (4 if small else 64), 16 if small else 100, 8 if small else 64
    generator, discriminator = Generator(noise, width).to(device), Discriminator(width).to(device)
    for_generator = torch.optim.Adam(generator.parameters(), 2e-4, (0.5, 0.999))
    for_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-4, (0.5, 0.999))

    def judge(images: Tensor, real: bool) -> Tensor:
        logits = discriminator(images)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def train(batch: Batch) -> None:
        real, drawn = batch
        for_discriminator.zero_grad(set_to_none=True)
        fake = generator(drawn)
        (judge(real, True) + judge(fake.detach(), False)).backward()
        for_discriminator.step()
        for_generator.zero_grad(set_to_none=True)
        judge(fake, True).backward()
        for_generator.step()

    def make_batch() -> Batch:
        return torch.randn(count, 3, 32, 32).to(device), torch.randn(count, noise, 1, 1).to(device)

    return Workload((generator, discriminator), (for_discriminator, for_generator), make_batch, train)


MODELS: dict[str, Spec] = {
    "resnet50": Spec("ResNet-50, 32 images, SGD, fp32 (tf32 convolutions)", "torchvision", _resnet50),
    "vgg16": Spec("VGG-16, 32 images, SGD, fp32 (tf32 convolutions)", "torchvision", _vgg16),
    "vit": Spec("ViT-B/16, 32 images, AdamW, bf16 autocast", "torchvision", _vit),
    "gpt2": Spec("GPT-2 small, 8 × 512 tokens, AdamW, bf16 autocast", "transformers", _gpt2),
    "bert": Spec("BERT base, 16 × 256 tokens, Adam, fp32", "transformers", _bert),
    "llama": Spec("Llama, 12 layers × 1024, 4 × 1024 tokens, AdamW, bf16", "transformers", _llama),
    "lstm": Spec("LSTM language model, 2 × 1024, 32 × 64 tokens, Adam, fp32", "", _lstm),
    "neumf": Spec("NeuMF at MovieLens-20M size, 65,536 pairs, Adam, fp32", "", _neumf),
    "gan": Spec("DCGAN, 64 images of 32 × 32, two Adams, fp32", "", _gan),
    "transformer": Spec("Transformer of torch's own layers, 16 × 256 tokens, AdamW, fp32", "", _transformer),
}
"""Every workload by its short name; ``needs`` names the library beside torch."""

EIGHT = ("resnet50", "vgg16", "vit", "gpt2", "bert", "llama", "lstm", "neumf")
"""The models of the published table, in its order."""
