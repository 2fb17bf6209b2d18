# Context variables go from tasks into threads that train; each sees its own.
import asyncio
import contextvars

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


name = contextvars.ContextVar("name", default="nobody")
seen = []


class Reads(torch.nn.Module):
    def forward(self, inputs):
        seen.append(name.get())
        return inputs


model.append(Reads())


async def work(own):
    name.set(own)
    for _ in range(4):
        await asyncio.to_thread(step)
        await asyncio.sleep(0)


async def main():
    await work("first")
    await work("second")
    async with asyncio.TaskGroup() as group:
        group.create_task(work("third"))


asyncio.run(main())
print(seen, name.get())
corpus_state.report(model=model)
