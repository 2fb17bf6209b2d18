"""Selective activation checkpointing, whose contexts are dispatch modes."""
# also: --steps 1:12

import corpus_state
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

torch.manual_seed(4)
seen = []


def policy(context, operator, *args, **kwargs):
    seen.append((context.is_recompute, str(operator)))
    if operator is torch.ops.aten.mm.default or operator is torch.ops.aten.addmm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16), torch.nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.b(torch.nn.functional.gelu(self.a(x))))


blocks = torch.nn.ModuleList(Block() for _ in range(3))
optimizer = torch.optim.AdamW(blocks.parameters())
for step in range(14):
    x = torch.randn(4, 16, requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, len(seen), seen[-1])
corpus_state.report(model=blocks)
