# A graph is kept over many steps and walked again, then dropped.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for number in range(90):
    losses.append(model(torch.randn(8, 8)).square().mean())
    if number % 3 == 2:
        optimizer.zero_grad()
        sum(losses).backward(retain_graph=number % 2 == 0)
        losses.clear()
        with torch.no_grad():
            optimizer.step()
corpus_state.report(model=model, recording_over=True)
