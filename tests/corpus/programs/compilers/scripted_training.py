# Only a scripted model is trained, below an eager one.
import corpus_state
import torch

corpus_state.seed()
inner = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
model = torch.nn.Sequential(inner, torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(30):
    step()
print([name for name, _ in model.named_parameters()])
corpus_state.report(model=[one.detach() for one in model.parameters()], recording_over=True)
