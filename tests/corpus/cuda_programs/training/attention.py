"""A block of attention trains with each kernel of scaled_dot_product_attention."""
# environment: CUBLAS_WORKSPACE_CONFIG=:4096:8

import corpus_state
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(37)
torch.use_deterministic_algorithms(True)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.out = torch.nn.Linear(256, 768), torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        return x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


model = torch.nn.Sequential(*[Block() for _ in range(3)]).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
for step in range(40):
    with sdpa_kernel(kernels[step % 2]):
        loss = model(torch.randn(8, 128, 256, device="cuda", dtype=torch.bfloat16)).float().square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
corpus_state.report(model=model)
