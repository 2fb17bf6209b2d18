# Log records from inside modules and hooks: file, line and function, with stack levels.
import logging

import corpus_state
import torch

logging.basicConfig(format="%(filename)s:%(lineno)d %(funcName)s %(threadName)s %(message)s", level=logging.INFO)
log = logging.getLogger("corpus")


class Logging(torch.nn.Module):
    def forward(self, x):
        if number in (0, 2, 4, 8, 14, 20):
            for level in range(1, 9):
                log.info("step %d level %d", number, level, stacklevel=level)
        return x


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.append(torch.nn.Sequential(Logging()))


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


model[0].weight.register_hook(lambda grad: log.debug("gradient"))
for number in range(24):
    step()
corpus_state.report(model=model, recording_over=True)
