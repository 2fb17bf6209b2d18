"""A VQ-VAE of which the codebook follows the encoder by moving averages; unused codes are replaced."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Codebook(nn.Module):
    def __init__(self, codes=384, width=48, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, data):
        flat = data.permute(0, 2, 3, 1).reshape(-1, data.shape[1])
        distances = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.T + self.codes.pow(2).sum(1)
        chosen = distances.argmin(1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(chosen, len(self.codes)).type_as(flat)
                self.counts.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums.mul_(self.decay).add_(hot.T @ flat, alpha=1 - self.decay)
                dead = self.counts < 0.5
                if dead.any():
                    fresh = flat[torch.randint(len(flat), (int(dead.sum()),), device=flat.device)]
                    self.sums[dead], self.counts[dead] = fresh, 1.0
                self.codes.copy_(self.sums / self.counts.unsqueeze(1))
        found = F.embedding(chosen, self.codes).view(data.shape[0], *data.shape[2:], -1).permute(0, 3, 1, 2)
        return data + (found - data).detach(), F.mse_loss(data, found.detach())


torch.manual_seed(0)
encoder = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 48, 4, 2, 1)).to(device)
decoder = nn.Sequential(nn.ConvTranspose2d(48, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)).to(device)
codebook = Codebook().to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-4)
for _ in range(4):
    frames = torch.rand(22, 3, 52, 52).to(device)
    quantized, commitment = codebook(encoder(frames))
    loss = F.mse_loss(decoder(quantized), frames) + 0.25 * commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
