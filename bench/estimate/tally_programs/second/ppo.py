"""PPO with generalized advantage estimation: rollouts, then epochs of minibatches, with an early stop by KL."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Policy(nn.Module):
    def __init__(self, size=1536, actions=9):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, states):
        hidden = self.body(states)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


class Worlds:
    def __init__(self, count, size):
        self.count, self.size, self.numbers = count, size, np.random.default_rng(6)

    def step(self, actions):
        rewards = (actions % 3 == 0).astype(np.float32)
        ends = self.numbers.random(self.count) < 0.02
        return (
            self.numbers.standard_normal((self.count, self.size)).astype(np.float32),
            rewards,
            ends.astype(np.float32),
        )


torch.manual_seed(0)
worlds, policy = Worlds(16, 1536), Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
state = torch.from_numpy(worlds.step(np.zeros(16))[0]).to(device)
for _ in range(2):
    states, actions, logs, rewards, values, ends = [], [], [], [], [], []
    for _ in range(96):
        with torch.no_grad():
            choice, value = policy(state)
            action = choice.sample()
        following, reward, end = worlds.step(action.cpu().numpy())
        states.append(state)
        actions.append(action)
        logs.append(choice.log_prob(action))
        values.append(value)
        rewards.append(torch.from_numpy(reward).to(device))
        ends.append(torch.from_numpy(end).to(device))
        state = torch.from_numpy(following).to(device)
    with torch.no_grad():
        last = policy(state)[1]
    advantages, advantage = [], torch.zeros(16, device=device)
    for t in reversed(range(96)):
        ahead = last if t == 95 else values[t + 1]
        delta = rewards[t] + 0.99 * ahead * (1 - ends[t]) - values[t]
        advantage = delta + 0.99 * 0.95 * (1 - ends[t]) * advantage
        advantages.insert(0, advantage)
    advantages = torch.stack(advantages).flatten()
    returns = advantages + torch.stack(values).flatten()
    states, actions, logs = (
        torch.stack(states).flatten(0, 1),
        torch.stack(actions).flatten(),
        torch.stack(logs).flatten(),
    )
    for _ in range(2):
        order = torch.randperm(len(actions), device=device)
        for rows in order.split(512):
            choice, value = policy(states[rows])
            now = choice.log_prob(actions[rows])
            ratio = (now - logs[rows]).exp()
            chosen = advantages[rows]
            chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
            gain = torch.min(ratio * chosen, ratio.clamp(0.8, 1.2) * chosen).mean()
            loss = -gain + 0.5 * (value - returns[rows]).pow(2).mean() - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        if (logs[rows] - now).mean().item() > 0.5:
            break
