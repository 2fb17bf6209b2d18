# Context variables that are copied into threads and changed inside modules.
import contextvars
from concurrent.futures import ThreadPoolExecutor

import corpus_state
import torch

depth = contextvars.ContextVar("depth", default=0)


class Deep(torch.nn.Linear):
    def forward(self, x):
        token = depth.set(depth.get() + 1)
        try:
            return super().forward(x) * depth.get()
        finally:
            depth.reset(token)


corpus_state.seed()
model = Deep(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with ThreadPoolExecutor(1) as pool:
    for number in range(30):
        depth.set(number % 3)
        context = contextvars.copy_context()
        pool.submit(context.run, step).result()
print(depth.get(), sorted(one.name for one in contextvars.copy_context() if one.name == "depth"))
corpus_state.report(model=model)
