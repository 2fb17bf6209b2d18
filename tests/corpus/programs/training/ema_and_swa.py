# Averaged weights: by swa_utils, with batch norms updated at the end.
import corpus_state
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
schedule = SWALR(optimizer, swa_lr=0.01)
for _ in range(30):
    step()
    averaged.update_parameters(model)
    schedule.step()
update_bn([torch.randn(8, 8) for _ in range(3)], averaged)
corpus_state.report(model=[model, averaged.module], recording_over=True)
