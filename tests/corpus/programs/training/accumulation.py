# Gradients of four batches before each step, and clipping.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(80):
    (model(torch.randn(8, 8)).square().mean() / 4).backward()
    if number % 4 == 3:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
corpus_state.report(model=model, recording_over=True)
