"""Distillation of features: forward hooks keep the teacher's and the student's activations, with projections."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        seen = self.first(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        return x + self.mlp(self.second(x))


class Encoder(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.words = nn.Embedding(4000, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 20)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def keep(store, name):
    def hook(_module, _inputs, output):
        store[name] = output

    return hook


torch.manual_seed(0)
teacher, student = Encoder(256, 6, 8).to(device).eval(), Encoder(128, 3, 4).to(device)
projections = nn.ModuleList(nn.Linear(128, 256) for _ in range(3)).to(device)
of_teacher, of_student = {}, {}
for place in range(3):
    teacher.layers[2 * place + 1].register_forward_hook(keep(of_teacher, place))
    student.layers[place].register_forward_hook(keep(of_student, place))
optimizer = torch.optim.AdamW([*student.parameters(), *projections.parameters()], lr=3e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, total_steps=9)
data = TensorDataset(torch.randint(4000, (96, 96)), torch.randint(20, (96,)))
for _ in range(3):
    for ids, labels in DataLoader(data, batch_size=32, shuffle=True, drop_last=True):
        ids, labels = ids.to(device), labels.to(device)
        with torch.inference_mode():
            wanted = teacher(ids)
        scores = student(ids)
        loss = F.cross_entropy(scores, labels)
        loss = loss + 4 * F.kl_div(
            F.log_softmax(scores / 2, 1), F.softmax(wanted.clone() / 2, 1), reduction="batchmean"
        )
        for place, project in enumerate(projections):
            loss = loss + F.mse_loss(project(of_student[place]), of_teacher[place].clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
