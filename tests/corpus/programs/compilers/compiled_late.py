# Something is compiled for the first time after the window, and in the timing pass.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


calls = []
for number in range(30):
    step()
    if number in (3, 4, 5, 13, 14):
        graphs = []
        compiled = torch.compile(torch.nn.Linear(8, 8), backend=lambda graph, _: graphs.append(1) or graph.forward)
        compiled(torch.ones(2, 8))
        compiled(torch.ones(2, 8))
        calls.append(len(graphs))
print(calls)
corpus_state.report(model=model, recording_over=True)
