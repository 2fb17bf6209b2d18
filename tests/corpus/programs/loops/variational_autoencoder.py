# A variational autoencoder: sampling inside forward, two losses with a schedule of their weight.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, inputs):
        mean, log_variance = self.encoder(inputs).chunk(2, dim=1)
        hidden = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(hidden), mean, log_variance


model = Autoencoder().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(25):
    inputs = torch.rand(16, 12, device=device)
    outputs, mean, log_variance = model(inputs)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
    loss = nn.functional.mse_loss(outputs, inputs) + min(1.0, number / 10) * divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
