# An event loop of its own kind, with its own handles.
import asyncio

import corpus_state
import torch


class Counting(asyncio.SelectorEventLoop):
    calls = 0

    def call_soon(self, callback, *args, context=None):
        Counting.calls += 1
        return super().call_soon(callback, *args, context=context)


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


async def train():
    for _ in range(30):
        step()
        await asyncio.sleep(0)


with asyncio.Runner(loop_factory=Counting) as runner:
    runner.run(train())
print(Counting.calls)
corpus_state.report(model=model, recording_over=True)
