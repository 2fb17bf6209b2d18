"""Serving of a decoder: requests join a running batch with their own caches, and leave when they end."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY, WIDTH, HEADS, LAYERS, END = 2000, 192, 6, 4, 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past):
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        if length > 1:
            scores = scores.masked_fill(torch.ones(length, length, device=x.device).triu(1).bool(), -1e4)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.last_norm(x)))), (key, value)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, caches=None):
        x, kept = self.words(ids), []
        for number, layer in enumerate(self.layers):
            x, one = layer(x, None if caches is None else caches[number])
            kept.append(one)
        return self.norm(x[:, -1]) @ self.words.weight.T, kept


def sample(scores, top_p=0.9):
    chances, order = scores.softmax(-1).sort(-1, descending=True)
    chances = chances.masked_fill(chances.cumsum(-1) - chances > top_p, 0)
    return order.gather(-1, torch.multinomial(chances, 1))


@torch.inference_mode()
def serve(model, waiting, most=24, longest=160):
    running, answers = [], {}
    while waiting or running:
        while waiting and len(running) < most:
            name, prompt = waiting.pop(0)
            scores, caches = model(prompt.to(device)[None])
            running.append([name, [sample(scores)], caches, 1 + int(prompt.sum()) % longest])
        for request in running:
            scores, request[2] = model(request[1][-1], request[2])
            request[1].append(sample(scores))
        for request in [one for one in running if len(one[1]) >= one[3]]:
            answers[request[0]] = torch.cat(request[1], 1).cpu()
            running.remove(request)
    return answers


torch.manual_seed(0)
model = Decoder().to(device).eval()
requests = [(number, torch.randint(1, VOCABULARY, (int(torch.randint(16, 320, ())),))) for number in range(40)]
print(sum(answer.numel() for answer in serve(model, requests).values()))
