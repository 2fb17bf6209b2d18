# Context variables in tasks, and what tasks inherit.
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


request = contextvars.ContextVar("request", default="none")
seen = []


async def work(number):
    request.set(f"request {number}")
    step()
    await asyncio.sleep(0)
    seen.append(request.get())
    step()


async def main():
    for number in range(10):
        async with asyncio.TaskGroup() as group:
            group.create_task(work(number))
            group.create_task(work(-number))


asyncio.run(main())
print(seen, request.get())
corpus_state.report(model=model, recording_over=True)
