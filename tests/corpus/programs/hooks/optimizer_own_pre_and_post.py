# Hooks of one optimizer, before and after its step.
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


order = []
optimizer.register_step_pre_hook(lambda *_: order.append("pre"))
optimizer.register_step_post_hook(lambda *_: order.append("post"))
optimizer.register_step_post_hook(lambda *_: order.append("second"))
for _ in range(30):
    step()
print(len(order), order[:6], order[-3:])
corpus_state.report(model=model, recording_over=True)
