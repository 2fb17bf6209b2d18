"""Deterministic algorithms only: embedding and index_add backward, a warning and an error where there is none."""
# environment: CUBLAS_WORKSPACE_CONFIG=:4096:8

import corpus_state
import torch

torch.manual_seed(49)
torch.use_deterministic_algorithms(True)
table, model = torch.nn.Embedding(50, 64).cuda(), torch.nn.Linear(64, 8).cuda()
optimizer = torch.optim.Adam([*table.parameters(), *model.parameters()])
refused = 0
for step in range(30):
    words = torch.randint(0, 50, (256,), device="cuda")
    total = torch.zeros(16, 64, device="cuda").index_add(0, words % 16, table(words))
    model(total).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    try:
        torch.bincount(words, weights=torch.ones(256, device="cuda"))
    except RuntimeError:
        refused += 1
    if step in (1, 2):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.bincount(words, weights=torch.ones(256, device="cuda"))
        torch.use_deterministic_algorithms(True)
print(refused, torch.are_deterministic_algorithms_enabled())
corpus_state.report(model=[table, model])
