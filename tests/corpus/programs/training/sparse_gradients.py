# Embeddings with sparse gradients and SparseAdam beside SGD.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.ModuleList([torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True), torch.nn.Linear(8, 4)])
optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.05)]
for _ in range(30):
    out = model[1](model[0](torch.randint(0, 50, (4, 5))))
    out.square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
corpus_state.report(model=model, recording_over=True)
