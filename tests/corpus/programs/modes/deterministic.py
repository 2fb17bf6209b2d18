# Deterministic algorithms are demanded, and an operator that has none is refused.
import corpus_state
import torch

torch.use_deterministic_algorithms(True)
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print(torch.are_deterministic_algorithms_enabled(), torch.empty(3).isnan().all().item())
torch.use_deterministic_algorithms(False)
corpus_state.report(model=model, recording_over=True)
