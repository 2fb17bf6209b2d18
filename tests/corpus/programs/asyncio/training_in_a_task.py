# Training in a task, evaluation in another, both over an event loop in debug mode.
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


seen = []


async def train():
    for _ in range(30):
        step()
        await asyncio.sleep(0)


async def evaluate(stop):
    while not stop.is_set():
        with torch.no_grad():
            seen.append(model(torch.ones(1, 8)).shape)
        await asyncio.sleep(0)


async def main():
    stop = asyncio.Event()
    task = asyncio.create_task(evaluate(stop), name="evaluation")
    await train()
    stop.set()
    await task


asyncio.run(main())
print(len(seen))
corpus_state.report(model=model, recording_over=True)
