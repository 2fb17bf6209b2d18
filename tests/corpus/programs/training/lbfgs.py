# LBFGS calls its closure several times a step.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
data = torch.randn(16, 8)
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss


for _ in range(24):
    optimizer.step(closure)
print(calls)
corpus_state.report(model=model, recording_over=True)
