# forward is replaced on the instance, and the class is changed, in the middle.
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
    step()
    if number in (1, 3, 13):
        original = model[1].forward
        model[1].forward = lambda x, original=original: original(x) * 0.9
    if number == 4:
        model[1].__class__ = torch.nn.Tanh
    if number == 20:
        del model[1].forward
corpus_state.report(model=model, recording_over=True)
