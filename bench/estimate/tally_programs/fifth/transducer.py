"""A transducer for speech: an encoder, a label network, their joint scores, and the loss over all alignments."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LABELS = 48


class Transducer(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.enter = nn.Conv1d(40, width, 5, 2, 2)
        self.mix = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1))
        self.labels = nn.Embedding(LABELS, width)
        self.history = nn.Conv1d(width, width, 3)
        self.joint = nn.Linear(width, LABELS)

    def forward(self, sounds, labels):
        heard = self.mix(F.gelu(self.enter(sounds))).transpose(1, 2)
        past = F.pad(self.labels(labels).transpose(1, 2), (3, 0))
        said = self.history(past).transpose(1, 2)
        return self.joint(torch.tanh(heard[:, :, None] + said[:, None])).log_softmax(-1)


def transducer_loss(scores, labels, sound_lengths, label_lengths):
    blank = scores[..., 0]
    emit = scores[:, :, :-1, 1:].gather(
        3, (labels - 1).clamp(min=0)[:, None, :, None].expand(-1, scores.shape[1], -1, 1)
    )
    emit = emit.squeeze(3)
    rows = [torch.cat([blank.new_zeros(len(blank), 1), emit[:, 0].cumsum(1)], 1)]
    for time in range(1, scores.shape[1]):
        stay = rows[-1] + blank[:, time - 1]
        row = [stay[:, 0]]
        for label in range(1, scores.shape[2]):
            row.append(torch.logaddexp(stay[:, label], row[-1] + emit[:, time, label - 1]))
        rows.append(torch.stack(row, 1))
    alpha = torch.stack(rows, 1)
    sample = torch.arange(len(labels), device=labels.device)
    return -(alpha[sample, sound_lengths - 1, label_lengths] + blank[sample, sound_lengths - 1, label_lengths]).mean()


torch.manual_seed(0)
model = Transducer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(6):
    sound_lengths = torch.randint(120, 201, (16,))
    label_lengths = torch.randint(8, 19, (16,))
    sounds = pad_sequence([torch.randn(int(length), 40) for length in sound_lengths], batch_first=True).transpose(1, 2)
    labels = pad_sequence([torch.randint(1, LABELS, (int(length),)) for length in label_lengths], batch_first=True)
    labels = labels.to(device)
    scores = model(sounds.to(device), labels)
    heard = ((sound_lengths + 1) // 2 + 1) // 2
    loss = transducer_loss(scores, labels, heard.to(device), label_lengths.to(device))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
