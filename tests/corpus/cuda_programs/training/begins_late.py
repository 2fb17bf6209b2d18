"""Training begins on the host; CUDA is first touched after twelve steps, in another thread."""

import threading

import corpus_state
import torch

torch.manual_seed(53)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(steps: int, device: str) -> None:
    for _ in range(steps):
        model(torch.randn(32, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


train(12, "cpu")
print(torch.cuda.is_initialized(), torch.cuda.is_available())


def move() -> None:
    global optimizer
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(12, "cuda")


mover = threading.Thread(target=move)
mover.start()
mover.join()
train(20, "cuda")
print(torch.cuda.is_initialized())
corpus_state.report(model=model)
