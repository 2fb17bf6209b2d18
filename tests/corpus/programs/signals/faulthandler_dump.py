# faulthandler writes the stack at a fixed place; only the program's own lines are kept.
import faulthandler
import tempfile

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


def dump(module, args):
    if number in (0, 2, 4, 5, 8, 14, 15, 20):
        with tempfile.TemporaryFile() as stream:
            faulthandler.dump_traceback(stream)
            stream.seek(0)
            lines = [line for line in stream.read().decode().splitlines() if "faulthandler_dump.py" in line]
        print(number, [line.rpartition(" in ")[2] for line in lines])


model[0].register_forward_pre_hook(dump)
for number in range(30):
    step()
corpus_state.report(model=model, recording_over=True)
