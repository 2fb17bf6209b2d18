"""Sequence to sequence with attention: the decoder's input is the truth or its own output, by a coin."""

import random

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Decoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words, self.cell = nn.Embedding(words, width), nn.LSTMCell(3 * width, width)
        self.query, self.leave = nn.Linear(width, 2 * width), nn.Linear(3 * width, words)

    def forward(self, word, state, memory, empty):
        scores = torch.bmm(memory, self.query(state[0]).unsqueeze(2)).squeeze(2).masked_fill(empty, -1e9)
        context = torch.bmm(scores.softmax(1).unsqueeze(1), memory).squeeze(1)
        state = self.cell(torch.cat([self.words(word), context], 1), state)
        return self.leave(torch.cat([state[0], context], 1)), state


class Translator(nn.Module):
    def __init__(self, words=2000, width=128):
        super().__init__()
        self.enter, self.embed = nn.Conv1d(width, 2 * width, 5, padding=2), nn.Embedding(words, width, padding_idx=0)
        self.decoder, self.start = Decoder(words, width), nn.Linear(2 * width, width)

    def forward(self, source, target, truth_frac):
        memory = torch.tanh(self.enter(self.embed(source).transpose(1, 2))).transpose(1, 2)
        empty = source == 0
        hidden = torch.tanh(self.start(memory.mean(1)))
        state, word, outputs = (hidden, torch.zeros_like(hidden)), target[:, 0], []
        for place in range(1, target.size(1)):
            output, state = self.decoder(word, state, memory, empty)
            outputs.append(output)
            word = target[:, place] if random.random() < truth_frac else output.argmax(1)
        return torch.stack(outputs, 1)


def pairs(count):
    numbers = random.Random(3)
    for _ in range(count):
        yield [torch.randint(2, 2000, (numbers.randint(5, 30),)) for _ in range(2)]


torch.manual_seed(0)
random.seed(0)
model = Translator().to(device)
optimizer = torch.optim.Adam(model.parameters())
examples = list(pairs(240))
for epoch in range(2):
    for first in range(0, len(examples), 24):
        batch = examples[first : first + 24]
        source, target = (
            nn.utils.rnn.pad_sequence([pair[side] for pair in batch], batch_first=True).to(device) for side in (0, 1)
        )
        scores = model(source, target, 1 - 0.5 * epoch)
        loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(epoch, f"{loss.item():.3f}")
