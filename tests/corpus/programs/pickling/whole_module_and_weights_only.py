# The whole module is saved and loaded while it trains, with and without weights_only, and by pickle protocols.
import copy
import io
import pickle

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


sizes = []
for number in range(24):
    step()
    if number % 4 == 1:
        place = io.BytesIO()
        torch.save(model, place)
        place.seek(0)
        again = torch.load(place, weights_only=False)
        sizes.append([len(pickle.dumps(model, protocol)) for protocol in (2, 4, 5)])
        same = all(map(torch.equal, again.parameters(), model.parameters()))
        place = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, place)
        place.seek(0)
        states = torch.load(place, weights_only=True, mmap=False)
        again.load_state_dict(states["model"])
        twin = copy.deepcopy((model, optimizer))
        print(number, same, sorted(vars(again)) == sorted(vars(model)), sorted(states), len(twin[1].param_groups))
print(sizes)
corpus_state.report(model=model, recording_over=True)
