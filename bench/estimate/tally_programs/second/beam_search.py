"""Decode with beam search and a cache of keys and values, without a training."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, data, past):
        batch, length, width = data.shape
        q, k, v = self.qkv(self.one(data)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        data = data + self.out(mixed)
        return data + self.mlp(self.two(data)), (k, v)


class Writer(nn.Module):
    def __init__(self, words=4000, width=256, layers=4):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        self.layers = nn.ModuleList([Layer(width, 8) for _ in range(layers)])

    def forward(self, words, past):
        start = 0 if past is None else past[0][0].shape[2]
        hidden = self.words(words) + self.places(torch.arange(start, start + words.shape[1], device=words.device))
        now = []
        for index, layer in enumerate(self.layers):
            hidden, cache = layer(hidden, None if past is None else past[index])
            now.append(cache)
        return hidden[:, -1] @ self.words.weight.T, now


@torch.no_grad()
def search(model, prompt, beams=6, most=40, end=7):
    batch = prompt.shape[0]
    scores, past = model(prompt, None)
    best, tokens = scores.log_softmax(-1).topk(beams, -1)
    past = [(k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)) for k, v in past]
    words = torch.cat([prompt.repeat_interleave(beams, 0), tokens.view(-1, 1)], 1)
    ended = tokens.view(-1) == end
    for _ in range(most):
        scores, past = model(words[:, -1:], past)
        logs = scores.log_softmax(-1)
        logs = logs.masked_fill(ended.unsqueeze(1), 0.0)
        total = (best.view(-1, 1) + logs).view(batch, -1)
        best, flat = total.topk(beams, -1)
        beam, token = flat // logs.shape[-1], flat % logs.shape[-1]
        rows = (beam + torch.arange(batch, device=beam.device).unsqueeze(1) * beams).view(-1)
        words = torch.cat([words[rows], token.view(-1, 1)], 1)
        past = [(k[rows], v[rows]) for k, v in past]
        ended = ended[rows] | (token.view(-1) == end)
        if ended.all():
            break
    return words.view(batch, beams, -1)[:, 0]


torch.manual_seed(0)
model = Writer().to(device).eval()
print(search(model, torch.randint(4000, (8, 48)).to(device)).shape)
