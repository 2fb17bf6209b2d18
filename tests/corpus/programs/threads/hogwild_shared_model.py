# Four threads train one model without locks; only that it ends is looked at.
import threading

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Linear(8, 4)


def work():
    own = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(40):
        model(torch.ones(8, 8)).square().mean().backward()
        own.step()


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(all(parameter.isfinite().all().item() for parameter in model.parameters()))
corpus_state.report()
