"""A linear-chain CRF over a convolutional tagger: forward algorithm in the loss, Viterbi for the evaluation."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.moves = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def forward(self, scores, tags, mask):
        return (self.normalizer(scores, mask) - self.score(scores, tags, mask)).mean()

    def score(self, scores, tags, mask):
        own = scores.gather(2, tags.unsqueeze(-1)).squeeze(-1) * mask
        moves = self.moves[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]
        last = tags.gather(1, mask.long().sum(1, keepdim=True) - 1).squeeze(1)
        return own.sum(1) + moves.sum(1) + self.start[tags[:, 0]] + self.end[last]

    def normalizer(self, scores, mask):
        alpha = self.start + scores[:, 0]
        for place in range(1, scores.shape[1]):
            grown = torch.logsumexp(alpha.unsqueeze(2) + self.moves + scores[:, place].unsqueeze(1), 1)
            alpha = torch.where(mask[:, place].unsqueeze(1).bool(), grown, alpha)
        return torch.logsumexp(alpha + self.end, 1)

    @torch.no_grad()
    def best(self, scores):
        value, backs = self.start + scores[:, 0], []
        for place in range(1, scores.shape[1]):
            value, back = (value.unsqueeze(2) + self.moves).max(1)
            value = value + scores[:, place]
            backs.append(back)
        path = [(value + self.end).argmax(1)]
        for back in reversed(backs):
            path.append(back.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], 1)


torch.manual_seed(0)
tags = 22
words = nn.Embedding(5000, 96).to(device)
body = nn.Sequential(nn.Conv1d(96, 160, 5, padding=2), nn.ReLU(), nn.Conv1d(160, tags, 3, padding=1)).to(device)
crf = CRF(tags).to(device)
optimizer = torch.optim.Adam([*words.parameters(), *body.parameters(), *crf.parameters()], lr=1e-3)
for step in range(4):
    text = torch.randint(5000, (64, 44)).to(device)
    gold = torch.randint(tags, (64, 44)).to(device)
    lengths = torch.randint(10, 45, (64,))
    mask = (torch.arange(44) < lengths.unsqueeze(1)).float().to(device)
    scores = body(words(text).transpose(1, 2)).transpose(1, 2)
    loss = crf(scores, gold, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        print((crf.best(scores) == gold).float().mean().item())
