# Averaged models of swa_utils with a buffer update and SWALR.
import corpus_state
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


model.insert(1, torch.nn.BatchNorm1d(16))
optimizer.add_param_group({"params": model[1].parameters()})
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=5)
for number in range(24):
    step()
    averaged.update_parameters(model)
    schedule.step()
update_bn([torch.randn(8, 8) for _ in range(3)], averaged)
print(int(averaged.n_averaged), schedule.get_last_lr())
corpus_state.report(model=[model, averaged], recording_over=True)
