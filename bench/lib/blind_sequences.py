"""Six nets without convolutions: for the set "varied" of bench/lib/blind_train.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from blind_parts import Training, images
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def _feed(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Windowed(nn.Module):
    """Attention inside windows of an image, which every second layer moves, with a bias for each distance."""

    def __init__(self, width: int, heads: int, side: int, moved: int) -> None:
        super().__init__()
        self.heads, self.side, self.moved = heads, side, moved
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.entry, self.exit = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = places[:, None] - places[None] + side - 1
        self.register_buffer("places", apart[..., 0] * (2 * side - 1) + apart[..., 1])
        self.feed = _feed(width, 4 * width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the places of ``data``, ``[batch, height, width, channels]``."""
        count, high, wide, width = data.shape
        side, heads = self.side, self.heads
        rolled = torch.roll(self.norms[0](data), (-self.moved, -self.moved), (1, 2))
        cut = rolled.view(count, high // side, side, wide // side, side, width).transpose(2, 3)
        parts = self.entry(cut.reshape(-1, side * side, width)).view(-1, side * side, 3, heads, width // heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        bias = self.bias[self.get_buffer("places")].permute(2, 0, 1)
        scores = query @ key.transpose(2, 3) * (width // heads) ** -0.5 + bias
        made = (scores.softmax(-1) @ value).transpose(1, 2).reshape(-1, side * side, width)
        joined = self.exit(made).view(count, high // side, wide // side, side, side, width).transpose(2, 3)
        data = data + torch.roll(joined.reshape(count, high, wide, width), (self.moved, self.moved), (1, 2))
        return data + self.feed(self.norms[1](data))  # type: ignore[no-any-return]


class Windows(nn.Module):
    """Stages of attention in windows, each with half the side and twice the width."""

    def __init__(self, width: int, *depths: int) -> None:
        super().__init__()
        self.entry = nn.Linear(48, width)
        self.stages = nn.ModuleList()
        self.merges = nn.ModuleList()
        for i, depth in enumerate(depths):
            size = width << i
            layers = (Windowed(size, size // 32, 8, 4 * (one % 2)) for one in range(depth))
            self.stages.append(nn.Sequential(*layers))
            self.merges.append(nn.Linear(4 * size, 2 * size, bias=False))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the channels of the last stage."""
        data = self.entry(F.pixel_unshuffle(pictures, 4).permute(0, 2, 3, 1))
        for stage, merge in zip(self.stages, self.merges, strict=True):
            data = stage(data)
            quarters = [data[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
            data = merge(torch.cat(quarters, -1))
        return data  # type: ignore[no-any-return]


class Experts(nn.Module):
    """A transformer whose tokens choose two experts each; how many an expert has depends on values."""

    def __init__(self, words: int, width: int, depth: int, experts: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(depth))
        self.feeds = nn.ModuleList(nn.ModuleList(_feed(width, 2 * width) for _ in range(experts)) for _ in range(depth))
        self.out = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each next word."""
        data = self.words(tokens)
        for i, (attention, gate, feeds) in enumerate(zip(self.attentions, self.gates, self.feeds, strict=True)):
            normed = self.norms[2 * i](data)
            data = data + attention(normed, normed, normed, need_weights=False)[0]
            flat = self.norms[2 * i + 1](data).flatten(0, 1)
            weights, chosen = gate(flat).softmax(-1).topk(2)
            total = torch.zeros_like(flat)
            for number, feed in enumerate(feeds):  # type: ignore[arg-type]
                rows, place = torch.where(chosen == number)
                total = total.index_add(0, rows, feed(flat[rows]) * weights[rows, place, None])
            data = data + total.view_as(data)
        return self.out(data)  # type: ignore[no-any-return]


class Graph(nn.Module):
    """Attention over the edges of a graph, as in GAT, with several heads."""

    def __init__(self, nodes: int, edges: int, *widths: int) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(1)
        self.register_buffer("edges", torch.randint(nodes, (2, edges), generator=dice))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.scores = nn.ParameterList(nn.Parameter(torch.randn(2, 4, b // 4)) for b in widths[1:])

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the channels of each node."""
        source, target = self.get_buffer("edges")
        for layer, score in zip(self.layers, self.scores, strict=True):
            made = layer(data)
            heads = made.view(made.shape[0], 4, -1)
            parts = (heads[None] * score[:, None]).sum(-1)
            edge = F.leaky_relu(parts[0][source] + parts[1][target], 0.2)
            index = target[:, None].expand_as(edge)
            most = torch.full_like(parts[0], -1e4).scatter_reduce(0, index, edge.detach(), "amax")
            weight = (edge - most[target]).exp()
            total = torch.zeros_like(parts[0]).scatter_add(0, index, weight)
            messages = heads[source] * (weight / total[target])[..., None]
            data = F.elu(torch.zeros_like(heads).index_add(0, target, messages)).flatten(1)
        return data


class Ragged(nn.Module):
    """A transformer over sequences of random lengths: dense layers have no padding, and attention has."""

    def __init__(self, words: int, width: int, depth: int, least: int, most: int) -> None:
        super().__init__()
        self.dice = torch.Generator().manual_seed(7)
        self.range = (least, most)
        self.words = nn.Embedding(words, width)
        self.entries = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.exits = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.feeds = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), _feed(width, 4 * width)) for _ in range(depth))
        self.out = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each word of ``tokens``, ``[batch, longest]``, without those of the padding."""
        lengths = torch.randint(*self.range, (tokens.shape[0],), generator=self.dice)
        longest = int(lengths.max())
        kept = (torch.arange(longest) < lengths[:, None]).to(tokens.device)
        data = self.words(tokens[:, :longest][kept])
        for entry, leave, feed in zip(self.entries, self.exits, self.feeds, strict=True):
            padded = data.new_zeros(*kept.shape, 3 * data.shape[1])
            padded[kept] = entry(data).to(padded.dtype)
            query, key, value = padded.view(*kept.shape, 3, 8, -1).permute(2, 0, 3, 1, 4)
            made = F.scaled_dot_product_attention(query, key, value, kept[:, None, None])
            data = data + leave(made.transpose(1, 2).flatten(2)[kept])
            data = data + feed(data)
        return self.out(data)  # type: ignore[no-any-return]


class Translator(nn.Module):
    """A bidirectional encoder, and a decoder of cells that attends to the encoder's states at each word."""

    def __init__(self, words: int, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.words = nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width // 2, 2, bidirectional=True, batch_first=True, dropout=0.2)
        self.cell = nn.LSTMCell(2 * width, width)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out = nn.Linear(2 * width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of so many words."""
        states = self.encoder(self.words(tokens))[0]
        keys, found = self.key(states), []
        hidden = memory = states.mean(1)
        for step in range(self.steps):
            energy = self.score(torch.tanh(self.query(hidden)[:, None] + keys))
            context = (energy.softmax(1) * states).sum(1)
            hidden, memory = self.cell(torch.cat([self.words(tokens[:, step]), context], 1), (hidden, memory))
            found.append(self.out(torch.cat([hidden, context], 1)))
        return torch.stack(found, 1)


class Decayed(nn.Module):
    """Linear attention with decay, in chunks of a sequence, as in state-space models."""

    def __init__(self, width: int, heads: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.entry, self.decay = nn.Linear(width, 4 * width), nn.Linear(width, heads)
        self.exit = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 6 * width), nn.Linear(3 * width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the places of ``data``, ``[batch, places, width]``."""
        normed = self.norms[0](data)
        count, places, width = normed.shape
        parts = self.entry(normed).view(count, places // self.chunk, self.chunk, 4, self.heads, -1)
        query, key, value, gate = parts.permute(3, 0, 4, 1, 2, 5)
        fading = F.logsigmoid(self.decay(normed)).view(count, places // self.chunk, self.chunk, -1)
        fading = fading.permute(0, 3, 1, 2).cumsum(-1)
        apart = (fading[..., :, None] - fading[..., None, :]).tril().exp()
        inner = (query @ key.transpose(-1, -2) * apart.tril()) @ value
        kept = (key * (fading[..., -1:] - fading).exp()[..., None]).transpose(-1, -2) @ value
        state, before = torch.zeros_like(kept[:, :, 0]), []
        for number in range(kept.shape[2]):
            before.append(state)
            state = state * fading[:, :, number, -1, None, None].exp() + kept[:, :, number]
        made = inner + (query * fading.exp()[..., None]) @ torch.stack(before, 2)
        joined = (made * F.silu(gate)).permute(0, 2, 3, 1, 4).reshape(count, places, width)
        data = data + self.exit(joined)
        left, right = self.up(self.norms[1](data)).chunk(2, -1)
        return data + self.down(F.silu(left) * right)  # type: ignore[no-any-return]


class Chunks(nn.Module):
    """A language model of decayed attention, of which each layer is computed again in the backward."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Decayed(width, width // 64, 64) for _ in range(depth))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each next word."""
        data = self.words(tokens)
        for layer in self.layers:
            data = checkpoint(layer, data, use_reentrant=False)
        return F.linear(self.norm(data), self.words.weight)


def _tokens(words: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(words, shape, device="cuda")


SEQUENCES: dict[str, Training] = {
    "windows": (lambda: Windows(96, 2, 2, 6), images(20, 3, 256, 256), "bfloat16"),
    "experts": (lambda: Experts(12000, 384, 4, 6), _tokens(12000, 14, 320), ""),
    "graph": (lambda: Graph(24000, 160000, 200, 256, 256, 128), images(24000, 200), ""),
    "ragged": (lambda: Ragged(9000, 512, 6, 40, 400), _tokens(9000, 36, 400), "float16"),
    "translator": (lambda: Translator(8000, 448, 48), _tokens(8000, 56, 60), ""),
    "chunks": (lambda: Chunks(16000, 768, 8), _tokens(16000, 6, 1024), "bfloat16"),
}
