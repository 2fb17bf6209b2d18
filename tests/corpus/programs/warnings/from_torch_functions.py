# Warnings that torch raises in C++ and Python, with the place where the program called.
import warnings

import corpus_state
import torch

warnings.simplefilter("always")
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


class Careless(torch.nn.Module):
    def forward(self, x):
        torch.nn.functional.mse_loss(x, torch.ones(1, 1))
        torch.ones(2, dtype=torch.complex64).to(torch.float32)
        torch.nn.functional.softmax(x)
        return x


careless = torch.nn.Sequential(Careless())
for number in range(24):
    optimizer.zero_grad()
    out = model(torch.ones(2, 8))
    (careless(out) if number in (0, 2, 4, 8, 14, 20) else out).sum().backward()
    optimizer.step()
warnings.simplefilter("ignore")
corpus_state.report(model=model, recording_over=True)
