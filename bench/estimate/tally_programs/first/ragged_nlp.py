"""Classify texts of different lengths with a Transformer encoder. Each batch is padded to its longest text."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Reviews(Dataset):
    def __init__(self, count, vocabulary):
        numbers = np.random.default_rng(3)
        self.lengths = np.clip(numbers.lognormal(4.2, 0.6, count).astype(int), 8, 320)
        self.numbers, self.vocabulary = numbers, vocabulary

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        words = np.random.default_rng(index).integers(1, self.vocabulary, self.lengths[index])
        return torch.from_numpy(words), index % 5


def collate(samples):
    words, labels = zip(*samples, strict=True)
    return pad_sequence(list(words), batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, vocabulary=9000, width=160, layers=3):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(320, width)
        layer = nn.TransformerEncoderLayer(width, 5, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, words):
        padding = words == 0
        hidden = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.head((hidden * kept).sum(1) / kept.sum(1))


torch.manual_seed(0)
model = Classifier().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = DataLoader(Reviews(400, 9000), batch_size=10, shuffle=True, collate_fn=collate)
for step, (words, labels) in enumerate(loader):
    words, labels = words.to(device), labels.to(device)
    loss = nn.functional.cross_entropy(model(words), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step == 5:
        break
