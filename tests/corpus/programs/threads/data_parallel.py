# torch.nn.DataParallel where there is no GPU, and replicas made by hand in threads.
import copy
import threading

import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
parallel = torch.nn.DataParallel(model)
for _ in range(30):
    optimizer.zero_grad()
    batch = torch.randn(8, 8)
    parallel(batch).square().mean().backward()
    replicas = [copy.deepcopy(model) for _ in range(2)]
    outs = [None, None]

    def work(index):
        outs[index] = replicas[index](batch[index * 4 : index * 4 + 4])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cat(outs).square().mean().backward()
    for mine, first, second in zip(model.parameters(), *(one.parameters() for one in replicas)):
        mine.grad += (first.grad + second.grad) / 2
    optimizer.step()
corpus_state.report(model=model, recording_over=True)
