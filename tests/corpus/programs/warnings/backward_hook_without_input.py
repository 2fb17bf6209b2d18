# torch's warning about full backward hooks whose inputs need no gradient.
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
    if number in (0, 4, 8, 14, 20):
        handle = model[0].register_full_backward_hook(lambda *_: None)
        step()
        handle.remove()
    step()
corpus_state.report(model=model, recording_over=True)
