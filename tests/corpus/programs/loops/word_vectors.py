# Word vectors with negative samples: sparse gradients, one optimizer for sparse and one for dense weights.
import corpus_state
import torch
from torch import nn

corpus_state.seed()
words, contexts, scale = (
    nn.Embedding(40, 8, sparse=True),
    nn.EmbeddingBag(40, 8, mode="sum", sparse=True),
    nn.Linear(1, 1),
)
sparse = torch.optim.SparseAdam([*words.parameters(), *contexts.parameters()], lr=1e-2)
dense = torch.optim.Adagrad(scale.parameters(), lr=1e-2)
for _ in range(24):
    chosen, around = torch.randint(0, 40, (16,)), torch.randint(0, 40, (16, 3))
    scores = scale((words(chosen) * contexts(around)).sum(1, keepdim=True))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, torch.randint(0, 2, (16, 1)).float())
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=[words, contexts, scale], recording_over=True)
