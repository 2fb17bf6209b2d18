# The model runs in a pool's threads, which the loop waits for.
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


async def main():
    loop = asyncio.get_running_loop()
    for _ in range(30):
        await loop.run_in_executor(None, step)
        await asyncio.to_thread(lambda: None)


asyncio.run(main())
corpus_state.report(model=model)
