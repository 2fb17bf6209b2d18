# Models that are made in a loop die without the garbage collector.
import gc
import weakref

import corpus_state
import torch

corpus_state.seed()
gc.collect()
gc.disable()
alive = []
for number in range(30):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    alive.append((weakref.ref(model), weakref.ref(model.weight), weakref.ref(optimizer)))
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
    kept = model.state_dict()
    del model
print([one() is None for one, _, _ in alive[:-1]].count(True), [one() is None for _, one, _ in alive[:-1]].count(True))
gc.enable()
corpus_state.report(model=kept)
