# Classes of __main__ and optimizers travel to spawned children and back by pickle.
# alone: yes
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


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, inputs):
        return self.inner(inputs).tanh()


def train(pair):
    model, optimizer = pair
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return model, type(optimizer).__qualname__, sorted(vars(model))


if __name__ == "__main__":
    own = Own()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back, kind, names = pool.map(train, [(own, torch.optim.SGD(own.parameters(), lr=0.1))])[0]
    losses = [step() for _ in range(6)]
    print(kind, names, type(back).__module__, torch.equal(back.inner.weight, own.inner.weight))
    corpus_state.report(model=[model, back])
