# Eight threads take tiny steps on models of their own, with inputs from weights that all of them share.
# also: --steps 1:100000
import threading

import corpus_state
import torch

corpus_state.seed()
shared = torch.nn.Embedding(16, 8)
models = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)) for _ in range(8)]
words = torch.arange(16)
kept = [[] for _ in models]


def work(number):
    model = models[number]
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(25):
        optimizer.zero_grad()
        inputs = shared(words[step % 8 :]).detach()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        kept[number].append(loss.detach())
        del kept[number][:-3]


threads = [threading.Thread(target=work, args=(number,)) for number in range(len(models))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
corpus_state.report(model=models, losses=[[float(loss) for loss in row] for row in kept])
