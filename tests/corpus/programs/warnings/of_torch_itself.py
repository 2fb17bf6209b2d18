# torch's own warnings: gradients of tensors that are no leaves, and steps in the wrong order.
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


schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
schedule.step()
for number in range(30):
    hidden = model[:2](torch.ones(1, 8))
    hidden.grad
    step()
    schedule.step()
print(optimizer.param_groups[0]["lr"])
corpus_state.report(model=model, recording_over=True)
