# set_grad_enabled as function and context, enable_grad inside inference, set_multithreading and forward AD.
import corpus_state
import torch
from torch.autograd import forward_ad

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


states = []
for number in range(24):
    torch.set_grad_enabled(number % 4 != 3)
    if torch.is_grad_enabled():
        with torch.autograd.set_multithreading_enabled(number % 2 == 0):
            step()
    else:
        with torch.enable_grad():
            step()
        with torch.inference_mode(), torch.inference_mode(False), torch.enable_grad():
            states.append(model(torch.ones(1, 8)).requires_grad)
    torch.set_grad_enabled(True)
with forward_ad.dual_level():
    dual = model(forward_ad.make_dual(torch.ones(1, 8), torch.ones(1, 8)))
    states.append(tuple(forward_ad.unpack_dual(dual).tangent.shape))
print(states)
corpus_state.report(model=model, recording_over=True)
