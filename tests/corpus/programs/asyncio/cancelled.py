# Tasks are cancelled and time out inside and between modules.
import asyncio

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


cancelled = []


async def endless(number):
    try:
        while True:
            step()
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        cancelled.append(number)
        raise


async def main():
    for number in range(5):
        task = asyncio.create_task(endless(number))
        for _ in range(6):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass


asyncio.run(main())
print(cancelled)
corpus_state.report(model=model, recording_over=True)
