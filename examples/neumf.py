"""NeuMF recommends items to users, from made-up clicks. --users 138493 --items 26744 is MovieLens-20M's size."""

import argparse
from itertools import pairwise

import torch
from torch import nn


class NeuMF(nn.Module):
    def __init__(self, users: int, items: int, factors: int) -> None:
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_mlp, self.item_mlp = nn.Embedding(users, 2 * factors), nn.Embedding(items, 2 * factors)
        widths = (4 * factors, 4 * factors, 2 * factors, factors)
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(*[part for layer in layers for part in layer])
        self.score = nn.Linear(2 * factors, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        gmf = self.user_gmf(user) * self.item_gmf(item)
        mlp = self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], dim=1))
        return self.score(torch.cat([gmf, mlp], dim=1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--items", type=int, default=3706)
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = NeuMF(args.users, args.items, args.factors).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    taste = torch.randn(args.users), torch.randn(args.items)
    for step in range(1, args.steps + 1):
        user, item = torch.randint(args.users, (args.batch,)), torch.randint(args.items, (args.batch,))
        clicked = (taste[0][user] * taste[1][item] > 0).float().to(args.device)
        optimizer.zero_grad()
        score = model(user.to(args.device), item.to(args.device))
        loss = nn.functional.binary_cross_entropy_with_logits(score, clicked)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
