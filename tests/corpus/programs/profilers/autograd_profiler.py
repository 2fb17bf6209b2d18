# The old profiler of torch.autograd, inside and outside of the window.
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


for number in range(30):
    with torch.autograd.profiler.profile(enabled=number in (1, 2, 4, 9, 14, 25)) as profiler:
        step()
    if profiler is not None:
        print(number, sum(event.name == "aten::addmm" for event in profiler.function_events))
corpus_state.report(model=model, recording_over=True)
