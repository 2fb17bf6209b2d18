# A new model and optimizer in every round, as searches make them.
import corpus_state
import torch

corpus_state.seed()
scores = []
for width in range(1, 31):
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).square().mean()
        loss.backward()
        optimizer.step()
    scores.append(f"{loss.item():.5f}")
print(scores)
corpus_state.report(model=model)
