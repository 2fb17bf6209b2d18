"""Dense retrieval: a corpus is encoded without gradients, and hard negatives are its nearest passages."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Encoder(nn.Module):
    def __init__(self, words=8000, width=192):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 6, 512, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        empty = ids == 0
        hidden = self.body(self.words(ids), src_key_padding_mask=empty)
        hidden = hidden.masked_fill(empty.unsqueeze(-1), 0.0)
        return F.normalize(hidden.sum(1) / (~empty).sum(1, keepdim=True), dim=-1)


def texts(count, longest):
    ids = torch.randint(1, 8000, (count, longest))
    lengths = torch.randint(8, longest + 1, (count,))
    return ids * (torch.arange(longest) < lengths[:, None])


torch.manual_seed(0)
passages, questions = texts(768, 80), texts(48, 24)
answers = torch.randperm(768)[:48]
model = Encoder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for _ in range(2):
    model.eval()
    with torch.no_grad():
        index = torch.cat([model(part.to(device)) for part in passages.split(128)])
        found = (model(questions.to(device)) @ index.T).topk(8, dim=1).indices.cpu()
    model.train()
    for rows in torch.randperm(48).split(16):
        positives = answers[rows]
        negatives = torch.stack([next(p for p in found[row] if p != answers[row]) for row in rows])
        asked = model(questions[rows].to(device))
        given = model(passages[torch.cat([positives, negatives])].to(device))
        scores = asked @ given.T / 0.05
        loss = F.cross_entropy(scores, torch.arange(len(rows), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del index
