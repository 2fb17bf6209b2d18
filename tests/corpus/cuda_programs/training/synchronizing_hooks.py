"""Every module's hooks wait for the GPU, forward and backward."""

import time

import corpus_state
import torch

torch.manual_seed(45)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)).cuda()
optimizer = torch.optim.RAdam(model.parameters())
waits = 0


def wait(*_: object) -> None:
    global waits
    torch.cuda.synchronize()
    waits += 1


torch.nn.modules.module.register_module_forward_pre_hook(wait)
torch.nn.modules.module.register_module_forward_hook(wait, always_call=True)
torch.nn.modules.module.register_module_full_backward_hook(wait)
model.register_full_backward_pre_hook(wait)
for _ in range(200):
    x = torch.randn(64, 128, device="cuda", requires_grad=True)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
print(waits)
corpus_state.report(model=model, waits=waits)
