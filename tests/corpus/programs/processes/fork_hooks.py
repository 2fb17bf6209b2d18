# Functions around forks, registered before and after torch.
import os

order = []
os.register_at_fork(before=lambda: order.append("before"), after_in_parent=lambda: order.append("after"))
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


os.register_at_fork(before=lambda: order.append("second"))
for number in range(20):
    step()
    if number in (1, 4, 8, 14):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
print(order)
corpus_state.report(model=model)
