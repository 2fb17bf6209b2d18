"""A small GPT learns the letters of a text that ships with it."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TEXT = (Path(__file__).parent / "data" / "ledger.txt").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(len(LETTERS), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))


parser = argparse.ArgumentParser(description=__doc__)
for name, default in (("width", 128), ("depth", 4), ("heads", 4), ("context", 128), ("batch", 16), ("steps", 16)):
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()

torch.manual_seed(0)
model = GPT(args.width, args.depth, args.heads, args.context).to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.tensor([LETTERS.index(letter) for letter in TEXT])
for step in range(1, args.steps + 1):
    starts = torch.randint(len(text) - args.context - 1, (args.batch,))
    batch = torch.stack([text[start : start + args.context + 1] for start in starts]).to(args.device)
    loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step:3d}  loss {loss.item():.4f}")
