"""Tokens are generated one by one in inference mode; keys and values are kept and grow."""
# environment: CUBLAS_WORKSPACE_CONFIG=:4096:8

import time

import corpus_state
import torch

torch.manual_seed(44)
torch.use_deterministic_algorithms(True)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.out = torch.nn.Linear(128, 384), torch.nn.Linear(128, 128)

    def forward(self, x: torch.Tensor, cache: list) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache[:] = [k, v]
        return x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Language(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(1000, 128)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))

    def forward(self, tokens: torch.Tensor, caches: list[list]) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return x[:, -1] @ self.tokens.weight.T


model = Language().cuda().eval()
caches: list[list] = [[], []]
tokens, found, held = torch.arange(16, device="cuda").view(2, 8), [], []
with torch.inference_mode():
    for _ in range(180):
        tokens = model(tokens, caches).argmax(-1, keepdim=True)
        found.append(tokens.flatten().tolist())
        held.append(torch.cuda.memory_allocated())
        time.sleep(0.02)
print(found[-5:], held[0], held[-1], caches[0][0].shape)
corpus_state.report(model=model, found=found, held=held)
