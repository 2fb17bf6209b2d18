# A profiler that another thread starts and stops while the main thread trains.
import threading

import corpus_state
import torch

with torch.profiler.profile():
    pass
corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(24):
    if number in (1, 4, 14, 20):

        def look():
            with torch.profiler.profile() as profiler:
                torch.ones(4).sum()
            names = [event.name for event in profiler.events()]
            print(number, names.count("aten::sum"))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    step()
corpus_state.report(model=model, recording_over=True)
