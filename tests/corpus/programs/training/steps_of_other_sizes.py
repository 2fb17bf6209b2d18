# Batches of different sizes, empty ones too, and a step without gradients.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(30):
    size = (8, 0, 1, 33)[number % 4]
    optimizer.zero_grad()
    if number % 5:
        model(torch.randn(size, 8)).sum().backward()
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
