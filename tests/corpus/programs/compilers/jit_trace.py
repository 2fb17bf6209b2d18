# torch.jit.trace of a model before, inside and after the window; the traced one trains.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
traced = torch.jit.trace(model, torch.ones(2, 8))
for number in range(30):
    optimizer.zero_grad()
    traced(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    if number in (1, 4, 8, 14, 20):
        again = torch.jit.trace(model, torch.ones(2, 8))
        print(number, again.code.count("forward"), torch.equal(again(torch.ones(1, 8)), model(torch.ones(1, 8))))
corpus_state.report(model=model, recording_over=True)
