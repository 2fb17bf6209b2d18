# Generators and coroutines hold models between steps, are closed in others, and clean up.
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


events = []


def epochs():
    own = torch.nn.Linear(8, 1)
    mine = torch.optim.Adam(own.parameters(), lr=0.01)
    try:
        while True:
            inputs = yield own(torch.ones(1, 8)).item() < 1e9
            mine.zero_grad()
            own(inputs).sum().backward()
            mine.step()
    except GeneratorExit:
        events.append("closed")
        raise
    finally:
        own(torch.ones(1, 8)).sum().backward()
        events.append("cleaned")


running = [epochs() for _ in range(3)]
print([next(one) for one in running])
for number in range(24):
    step()
    for one in running:
        one.send(torch.randn(2, 8))
    if number % 8 == 7:
        running.pop().close()
print(events)
corpus_state.report(model=model, recording_over=True)
