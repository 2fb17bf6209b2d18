# Each parameter has an optimizer of its own, which steps inside backward.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizers = {parameter: torch.optim.Adam([parameter], lr=1e-2) for parameter in model.parameters()}
order = []


def apply(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
    order.append(tuple(parameter.shape))


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(apply)
for _ in range(30):
    model(torch.randn(8, 8)).square().mean().backward()
print(len(order), order[:4])
corpus_state.report(model=model, recording_over=True)
