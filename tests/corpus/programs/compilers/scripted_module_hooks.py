# A scripted module and a traced one beside plain ones, frozen for inference in between.
# environment: PYTHONWARNINGS=ignore
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


scripted = torch.jit.script(model)
frozen = torch.jit.freeze(torch.jit.trace(torch.nn.Linear(8, 2).eval(), torch.randn(1, 8)))
for number in range(24):
    optimizer.zero_grad()
    loss = scripted(torch.randn(8, 8)).square().mean() + 0 * frozen(torch.ones(1, 8)).sum()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}", scripted.code.count("return"), type(scripted).__name__)
corpus_state.report(model=model, recording_over=True)
