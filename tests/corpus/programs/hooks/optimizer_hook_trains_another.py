# A hook after the step of one optimizer makes a step of a second one.
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


other = torch.nn.Linear(4, 1)
other_optimizer = torch.optim.Adam(other.parameters())


def follow(*_):
    other_optimizer.zero_grad()
    other(torch.ones(2, 4)).sum().backward()
    other_optimizer.step()


optimizer.register_step_post_hook(follow)
for _ in range(30):
    step()
corpus_state.report(model=[model, other], recording_over=True)
