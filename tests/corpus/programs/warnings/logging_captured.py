# Warnings go into the log, and exceptions with their tracebacks.
import logging
import warnings

import corpus_state
import torch

logging.basicConfig(format="%(name)s %(levelname)s %(message)s", level=logging.DEBUG)
logging.getLogger("torch").setLevel(logging.WARNING)
logging.captureWarnings(True)


class Failing(torch.nn.Module):
    def forward(self, x):
        warnings.warn(f"step {number}", stacklevel=4)
        raise RuntimeError("to be logged")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


failing = torch.nn.Sequential(torch.nn.Sequential(Failing()))
for number in range(24):
    step()
    if number in (0, 2, 4, 8, 14, 20):
        try:
            failing(torch.ones(1))
        except RuntimeError:
            logging.exception("caught")
logging.captureWarnings(False)
corpus_state.report(model=model, recording_over=True)
