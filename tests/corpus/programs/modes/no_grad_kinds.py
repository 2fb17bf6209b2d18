# Grad mode as context, decorator and switch; what holds where is printed in several stages.
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


@torch.no_grad()
def evaluate():
    return torch.is_grad_enabled(), model(torch.ones(1, 8)).requires_grad


for number in range(30):
    step()
    with torch.set_grad_enabled(number % 2 == 0):
        inside = model(torch.ones(1, 8)).requires_grad
    if number in (0, 2, 4, 5, 14, 20):
        print(number, evaluate(), inside, torch.is_grad_enabled())
torch.set_grad_enabled(False)
print(model(torch.ones(1, 8)).requires_grad)
corpus_state.report(model=model, recording_over=True)
