"""Modules whose forward is a coroutine, a generator or an asynchronous generator."""

import asyncio

import corpus_state
import torch

torch.manual_seed(23)


class Later(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    async def forward(self, x):
        await asyncio.sleep(0)
        return self.fc(x)


class Pieces(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        for one in x:
            yield self.fc(one)


class Stream(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    async def forward(self, x):
        for one in x:
            yield self.fc(one)


later, pieces, stream = Later(), Pieces(), Stream()
every = torch.nn.ModuleList([later, pieces, stream])
optimizer = torch.optim.SGD(every.parameters(), lr=0.1)


async def train():
    for step in range(14):
        found = [await later(torch.randn(2, 4)), *pieces(torch.randn(3, 4))]
        found += [one async for one in stream(torch.randn(2, 4))]
        loss = sum(one.sum() for one in found)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, f"{loss.item():.5f}", len(found))


asyncio.run(train())
corpus_state.report(model=every)
