# A pool of forked processes computes with the model.
import multiprocessing

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


def score(number):
    with torch.no_grad():
        return model(torch.full((1, 8), float(number))).sum().item()


if __name__ == "__main__":
    for number in range(20):
        step()
        if number in (1, 4, 14):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print([f"{one:.6f}" for one in pool.map(score, range(4))])
    corpus_state.report(model=model)
