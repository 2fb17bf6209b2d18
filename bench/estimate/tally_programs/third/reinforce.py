"""REINFORCE with a recurrent policy: episodes end at random, and the whole graph of an episode is kept."""

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.cell, self.leave = nn.Linear(200, 384), nn.GRUCell(384, 384), nn.Linear(384, 7)

    def forward(self, seen, state):
        state = self.cell(torch.relu(self.enter(seen)), state)
        return torch.distributions.Categorical(logits=self.leave(state)), state


torch.manual_seed(0)
numbers = np.random.default_rng(14)
policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(10):
    state, logs, rewards = torch.zeros(48, 384, device=device), [], []
    for _ in range(int(numbers.integers(15, 60))):
        seen = torch.from_numpy(numbers.standard_normal((48, 200)).astype(np.float32)).to(device)
        choice, state = policy(seen, state)
        action = choice.sample()
        logs.append(choice.log_prob(action))
        rewards.append((action == 3).float())
    returns, total = [], torch.zeros(48, device=device)
    for reward in reversed(rewards):
        total = reward + 0.97 * total
        returns.insert(0, total)
    returns = torch.stack(returns)
    loss = -(torch.stack(logs) * (returns - returns.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
