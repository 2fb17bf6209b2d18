"""Translate with a GRU encoder and an attention decoder, word by word, with random teacher forcing."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def collate(pairs):
    def pad(rows):
        longest = max(len(row) for row in rows)
        return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])

    return pad([source for source, _ in pairs]), pad([target for _, target in pairs])


class Encoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words, self.gru = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)

    def forward(self, source):
        hidden, last = self.gru(self.words(source))
        return self.bridge(hidden), torch.tanh(self.bridge(torch.cat([last[0], last[1]], 1)))


class Decoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words, self.cell = nn.Embedding(words, width), nn.GRUCell(2 * width, width)
        self.score, self.out = nn.Linear(width, width), nn.Linear(2 * width, words)

    def forward(self, word, state, memory, padding):
        scores = (memory @ self.score(state).unsqueeze(-1)).squeeze(-1).masked_fill(padding, -1e9)
        context = (scores.softmax(-1).unsqueeze(1) @ memory).squeeze(1)
        state = self.cell(torch.cat([self.words(word), context], 1), state)
        return self.out(torch.cat([state, context], 1)), state


torch.manual_seed(0)
random.seed(0)
numbers = np.random.default_rng(5)
pairs = [
    (
        numbers.integers(1, 4000, numbers.integers(5, 24)).tolist(),
        numbers.integers(1, 4000, numbers.integers(5, 24)).tolist(),
    )
    for _ in range(500)
]
encoder, decoder = Encoder(4000, 176).to(device), Decoder(4000, 176).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step, (source, target) in enumerate(DataLoader(pairs, 48, shuffle=True, collate_fn=collate)):
    source, target = source.to(device), target.to(device)
    memory, state = encoder(source)
    padding, word, loss = source == 0, torch.ones(source.shape[0], dtype=torch.long, device=device), 0
    for place in range(target.shape[1]):
        scores, state = decoder(word, state, memory, padding)
        loss = loss + nn.functional.cross_entropy(scores, target[:, place], ignore_index=0)
        word = target[:, place] if random.random() < 0.5 else scores.argmax(1)
    optimizer.zero_grad()
    (loss / target.shape[1]).backward()
    optimizer.step()
    if step == 3:
        break
