"""Distil a convolutional teacher into a student: soft labels and hints of a hidden layer, by forward hooks."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(widths, classes=30):
    layers, before = [], 3
    for width in widths:
        layers += [
            nn.Conv2d(before, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


torch.manual_seed(0)
teacher, student = network((64, 128, 256)).to(device).eval(), network((24, 48, 96)).to(device)
adapter = nn.Conv2d(48, 128, 1).to(device)
hints = {}
teacher[7].register_forward_hook(lambda module, inputs, output: hints.update(teacher=output))
student[7].register_forward_hook(lambda module, inputs, output: hints.update(student=output))
optimizer = torch.optim.Adam([*student.parameters(), *adapter.parameters()], lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20)
for _ in range(5):
    frames, labels = torch.rand(30, 3, 56, 56).to(device), torch.randint(30, (30,)).to(device)
    with torch.no_grad():
        wanted = teacher(frames)
    scores = student(frames)
    soft = F.kl_div((scores / 4).log_softmax(1), (wanted / 4).softmax(1), reduction="batchmean") * 16
    loss = 0.7 * soft + 0.3 * F.cross_entropy(scores, labels) + F.mse_loss(adapter(hints["student"]), hints["teacher"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
