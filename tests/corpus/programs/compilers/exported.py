# torch.export of the model in the window and after it.
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


for number in range(24):
    step()
    if number in (1, 20):
        program = torch.export.export(model, (torch.ones(2, 8),))
        print(number, [str(node.target) for node in program.graph.nodes])
        print(torch.equal(program.module()(torch.ones(2, 8)), model(torch.ones(2, 8))))
corpus_state.report(model=model, recording_over=True)
