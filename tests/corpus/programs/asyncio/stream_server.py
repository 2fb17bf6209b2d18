# A server of asyncio answers clients with a model, and trains it between them.
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


async def answer(reader, writer):
    number = int(await reader.readline())
    with torch.no_grad():
        writer.write(f"{model(torch.full((1, 8), float(number))).sum().item():.6f}\n".encode())
    await writer.drain()
    writer.close()


async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{number}\n".encode())
    line = await reader.readline()
    writer.close()
    return line.decode().strip()


async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answers = []
    for number in range(30):
        step()
        answers.append(await ask(port, number))
    server.close()
    return answers


print(asyncio.run(main()))
corpus_state.report(model=model, recording_over=True)
