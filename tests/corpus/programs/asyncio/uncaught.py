# Exceptions in tasks, callbacks and async generators that nobody fetches.
import asyncio

import corpus_state
import torch


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError("in a task")


corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


failing = torch.nn.Sequential(Failing())


async def fail():
    failing(torch.ones(1))


async def batches():
    for number in range(3):
        yield torch.randn(8, 8)


async def main():
    told = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(type(context["exception"]).__name__))
    for _ in range(10):
        async for batch in batches():
            step()
        asyncio.get_running_loop().call_soon(failing, torch.ones(1))
        result = await asyncio.gather(fail(), return_exceptions=True)
    await asyncio.sleep(0)
    return told, result


print(asyncio.run(main()))
corpus_state.report(model=model, recording_over=True)
