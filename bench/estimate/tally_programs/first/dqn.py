"""Deep Q-learning with a replay buffer on the device, a target network and epsilon-greedy actions."""

import random
from collections import deque

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GridWorld:
    def __init__(self, size=42):
        self.size, self.numbers = size, np.random.default_rng(1)

    def reset(self):
        self.left = 60
        return self.numbers.random((3, self.size, self.size), dtype=np.float32)

    def step(self, action):
        self.left -= 1
        return self.numbers.random((3, self.size, self.size), dtype=np.float32), float(action == 2), self.left == 0


class QNetwork(nn.Module):
    def __init__(self, actions=5):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.value = nn.Sequential(nn.Linear(64 * 9 * 9, 384), nn.ReLU(), nn.Linear(384, 1))
        self.advantage = nn.Sequential(nn.Linear(64 * 9 * 9, 384), nn.ReLU(), nn.Linear(384, actions))

    def forward(self, frames):
        hidden = self.body(frames)
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)


torch.manual_seed(0)
random.seed(0)
world, online, target = GridWorld(), QNetwork().to(device), QNetwork().to(device)
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
memory = deque(maxlen=5000)
state, epsilon, updates = torch.from_numpy(world.reset()).to(device), 1.0, 0
for _ in range(700):
    if random.random() < epsilon:
        action = random.randrange(5)
    else:
        with torch.no_grad():
            action = online(state.unsqueeze(0)).argmax(1).item()
    epsilon = max(0.05, epsilon * 0.995)
    frame, reward, done = world.step(action)
    following = torch.from_numpy(frame).to(device)
    memory.append((state, action, reward, following, done))
    state = torch.from_numpy(world.reset()).to(device) if done else following
    if len(memory) < 256:
        continue
    batch = random.sample(memory, 64)
    states = torch.stack([item[0] for item in batch])
    actions = torch.tensor([item[1] for item in batch], device=device)
    rewards = torch.tensor([item[2] for item in batch], device=device)
    followings = torch.stack([item[3] for item in batch])
    ends = torch.tensor([item[4] for item in batch], device=device, dtype=torch.float32)
    values = online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        goals = rewards + 0.99 * (1 - ends) * target(followings).max(1).values
    loss = nn.functional.smooth_l1_loss(values, goals)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1
    if updates % 50 == 0:
        target.load_state_dict(online.state_dict())
    if updates == 30:
        break
