"""Quantization-aware training by hand: fake-quantized weights and activations with a straight-through gradient."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data, scale):
        scaled = data / scale
        ctx.save_for_backward(scaled.abs() <= 127)
        return scaled.round().clamp(-127, 127) * scale

    @staticmethod
    def backward(ctx, gradient):
        (inside,) = ctx.saved_tensors
        return gradient * inside, None


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.tensor(0.0))

    def forward(self, data):
        if self.training:
            with torch.no_grad():
                now = data.abs().max()
                self.most.copy_(torch.where(self.most == 0, now, 0.9 * self.most + 0.1 * now))
        return Round.apply(data, self.most.clamp(min=1e-6) / 127)


class QLinear(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.observe = Observer()

    def forward(self, data):
        weight = Round.apply(self.weight, self.weight.detach().abs().max() / 127)
        return F.linear(self.observe(data), weight, self.bias)


torch.manual_seed(0)
model = nn.Sequential(
    QLinear(700, 900), nn.ReLU(), QLinear(900, 900), nn.ReLU(), QLinear(900, 900), nn.ReLU(), QLinear(900, 50)
).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
for _ in range(4):
    data, labels = torch.randn(850, 700).to(device), torch.randint(50, (850,)).to(device)
    loss = F.cross_entropy(model(data), labels, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
