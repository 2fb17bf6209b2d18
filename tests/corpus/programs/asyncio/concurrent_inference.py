# Requests are answered by concurrent tasks that give way inside the model's work.
import asyncio

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
order = []


async def answer(number):
    x = torch.full((1, 8), float(number))
    for layer in model:
        x = layer(x).tanh()
        order.append(number)
        await asyncio.sleep(0)
    return x.sum().item()


async def main():
    with torch.no_grad():
        for _ in range(10):
            answers = await asyncio.gather(*(answer(number) for number in range(4)))
    return answers


print([f"{one:.6f}" for one in asyncio.run(main())], order[:12], len(order))
corpus_state.report(model=model)
