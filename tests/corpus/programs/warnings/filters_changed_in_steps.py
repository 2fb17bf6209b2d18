# Warning filters are changed inside steps, with catch_warnings in a forward and logging set up anew.
import logging
import warnings

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


class Warns(torch.nn.Module):
    def forward(self, inputs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("from a forward", stacklevel=2)
        counts.append(len(caught))
        logging.getLogger("program").info("%s rows", len(inputs))
        return inputs


counts, records = [], []
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(levelname)s %(funcName)s %(lineno)d %(message)s"))
logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
model.append(Warns())
for number in range(24):
    if number == 5:
        logging.disable(logging.INFO)
        warnings.resetwarnings()
    step()
print(sum(counts), len(warnings.filters))
corpus_state.report(model=model)
