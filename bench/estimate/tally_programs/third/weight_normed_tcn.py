"""A temporal convolutional network with weight normalization and dropout of channels, on sequences cut at random."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, inputs, outputs, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.one = weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.two = weight_norm(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None
        self.drop = nn.Dropout1d(0.1)

    def forward(self, data):
        hidden = self.drop(torch.relu(self.one(self.pad(data))))
        hidden = self.drop(torch.relu(self.two(self.pad(hidden))))
        return torch.relu(hidden + (data if self.skip is None else self.skip(data)))


torch.manual_seed(5)
model = nn.Sequential(Layer(10, 72, 1), Layer(72, 72, 2), Layer(72, 72, 4), Layer(72, 72, 8), nn.Conv1d(72, 10, 1)).to(
    device
)
optimizer = torch.optim.RAdam(model.parameters(), lr=2e-3)
for _ in range(12):
    length = int(torch.randint(90, 260, ()))
    series = torch.randn(26, 10, length + 1).to(device)
    loss = nn.functional.huber_loss(model(series[..., :-1]), series[..., 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
