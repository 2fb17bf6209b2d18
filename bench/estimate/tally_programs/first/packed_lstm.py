"""Tag words with a bidirectional LSTM on packed sequences of different lengths."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sentences(count):
    numbers = np.random.default_rng(11)
    for _ in range(count):
        length = int(numbers.integers(6, 44))
        yield numbers.integers(1, 6000, length), numbers.integers(1, 18, length)


def collate(samples):
    words = [torch.from_numpy(words) for words, _ in samples]
    tags = [torch.from_numpy(tags) for _, tags in samples]
    lengths = torch.tensor([len(one) for one in words])
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True), lengths


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6000, 128, padding_idx=0)
        self.lstm = nn.LSTM(128, 192, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.head = nn.Linear(384, 18)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(hidden)


torch.manual_seed(0)
model = Tagger().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss(ignore_index=0)
for step, (words, tags, lengths) in enumerate(DataLoader(list(sentences(400)), 64, shuffle=True, collate_fn=collate)):
    words, tags = words.to(device), tags.to(device)
    scores = model(words, lengths)
    loss = criterion(scores.flatten(0, 1), tags.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step == 4:
        break
