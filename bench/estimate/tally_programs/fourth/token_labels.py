"""Labels for each token of padded texts: an encoder with a padding mask, a rate for each layer, and an early stop."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    def __init__(self, words=6000, width=192, labels=17):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(200, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.1, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(width, labels)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.body(x, src_key_padding_mask=ids.eq(0)))


def texts(count, seed):
    numbers = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(8, 120, (), generator=numbers))
        yield torch.randint(1, 6000, (length,), generator=numbers), torch.randint(17, (length,), generator=numbers)


def together(examples):
    ids, labels = zip(*examples, strict=True)
    return pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


torch.manual_seed(0)
train = DataLoader(list(texts(96, 1)), 16, shuffle=True, collate_fn=together)
check = DataLoader(list(texts(48, 2)), 24, collate_fn=together)
model = Tagger().to(device)
groups = [{"params": layer.parameters(), "lr": 1e-4 * 0.8**place} for place, layer in enumerate(model.body.layers)]
rest = [*model.words.parameters(), *model.places.parameters(), *model.head.parameters()]
optimizer = torch.optim.AdamW([*groups, {"params": rest, "lr": 1e-4}], weight_decay=0.01)
best, waited = float("inf"), 0
for _ in range(3):
    model.train()
    for ids, labels in train:
        loss = F.cross_entropy(model(ids.to(device)).flatten(0, 1), labels.to(device).flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for ids, labels in check:
            scores = model(ids.to(device))
            total += F.cross_entropy(scores.transpose(1, 2), labels[:, : scores.shape[1]].to(device)).item()
    if total < best:
        best, waited = total, 0
    else:
        waited += 1
    if waited > 1:
        break
