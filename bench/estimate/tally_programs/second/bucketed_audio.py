"""Recognize speech with CTC. Clips are sorted into buckets of similar length, and each batch has a frame budget."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Clips:
    def __init__(self, count):
        numbers = np.random.default_rng(8)
        self.frames = numbers.integers(60, 420, count)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        numbers = np.random.default_rng(index)
        frames = int(self.frames[index])
        return numbers.standard_normal((frames, 64)).astype(np.float32), numbers.integers(1, 30, max(3, frames // 14))


class Buckets(Sampler):
    def __init__(self, frames, budget):
        order, self.batches = np.argsort(frames), []
        batch = []
        for index in order:
            if (len(batch) + 1) * frames[index] > budget:
                self.batches.append(batch)
                batch = []
            batch.append(int(index))
        self.batches.append(batch)
        np.random.default_rng(4).shuffle(self.batches)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(samples):
    longest = max(len(sound) for sound, _ in samples)
    sounds = np.zeros((len(samples), longest, 64), np.float32)
    for row, (sound, _) in enumerate(samples):
        sounds[row, : len(sound)] = sound
    texts = torch.from_numpy(np.concatenate([text for _, text in samples]))
    sizes = torch.tensor([len(sound) for sound, _ in samples]), torch.tensor([len(text) for _, text in samples])
    return torch.from_numpy(sounds), texts, *sizes


class Recognizer(nn.Module):
    def __init__(self, width=176):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(64, width, 5, 2, 2), nn.GELU(), nn.Conv1d(width, width, 5, 1, 2), nn.GELU()
        )
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv1d(width, width, 9, padding=4, groups=width),
                    nn.BatchNorm1d(width),
                    nn.SiLU(),
                    nn.Conv1d(width, width, 1),
                    nn.Dropout(0.1),
                )
                for _ in range(5)
            ]
        )
        self.head = nn.Linear(width, 30)

    def forward(self, sounds):
        hidden = self.front(sounds.transpose(1, 2))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden.transpose(1, 2)).log_softmax(-1)


torch.manual_seed(0)
clips = Clips(260)
model = Recognizer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ctc = nn.CTCLoss(zero_infinity=True)
loader = DataLoader(clips, batch_sampler=Buckets(clips.frames, 6000), collate_fn=collate)
for step, (sounds, texts, frames, letters) in enumerate(loader):
    scores = model(sounds.to(device))
    loss = ctc(scores.transpose(0, 1), texts.to(device), (frames + 1) // 2, letters)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 8:
        break
