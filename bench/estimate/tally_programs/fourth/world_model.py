"""A world model: a recurrent state learns from replayed sequences, and actor and critic learn in imagined rollouts."""

import copy

import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp(inside, outside, width=256):
    return nn.Sequential(
        nn.Linear(inside, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outside)
    )


def normal(numbers):
    mean, scale = numbers.chunk(2, -1)
    return Independent(Normal(mean, F.softplus(scale) + 0.1), 1)


class World(nn.Module):
    def __init__(self, seen=300, acts=6, hidden=200, chance=30):
        super().__init__()
        self.encode, self.decode = mlp(seen, 256), mlp(hidden + chance, seen)
        self.mix, self.gates = nn.Linear(chance + acts, hidden), nn.Linear(2 * hidden, 2 * hidden)
        self.before, self.after = mlp(hidden, 2 * chance), mlp(hidden + 256, 2 * chance)
        self.reward, self.hidden, self.chance = mlp(hidden + chance, 1), hidden, chance

    def dream(self, state, act):
        h, z = state
        inside = F.elu(self.mix(torch.cat([z, act], -1)))
        gate, new = self.gates(torch.cat([h, inside], -1)).chunk(2, -1)
        h = gate.sigmoid() * h + (1 - gate.sigmoid()) * new.tanh()
        return h, normal(self.before(h))


class Buffer:
    def __init__(self, size):
        self.seen, self.acts = torch.zeros(size, 300), torch.zeros(size, 6)
        self.rewards, self.place, self.size = torch.zeros(size), 0, size

    def add(self, seen, act, reward):
        self.seen[self.place % self.size], self.acts[self.place % self.size] = seen, act
        self.rewards[self.place % self.size] = reward
        self.place += 1

    def sample(self, count, length):
        starts = torch.randint(min(self.place, self.size) - length, (count,))
        rows = starts[None] + torch.arange(length)[:, None]
        return self.seen[rows].to(device), self.acts[rows].to(device), self.rewards[rows].to(device)


torch.manual_seed(0)
world, actor, critic = World().to(device), mlp(230, 12).to(device), mlp(230, 1).to(device)
slow = copy.deepcopy(critic)
by_world = torch.optim.Adam(world.parameters(), lr=6e-4)
by_actor, by_critic = torch.optim.Adam(actor.parameters(), lr=8e-5), torch.optim.Adam(critic.parameters(), lr=8e-5)
buffer = Buffer(2000)
for _ in range(200):
    buffer.add(torch.randn(300), torch.randn(6), torch.randn(()))
for step in range(5):
    seen, acts, rewards = buffer.sample(16, 20)
    state = torch.zeros(16, 200, device=device), torch.zeros(16, 30, device=device)
    states, gap = [], 0.0
    for t in range(20):
        h, before = world.dream(state, acts[t])
        after = normal(world.after(torch.cat([h, world.encode(seen[t])], -1)))
        gap = gap + kl_divergence(after, before).clamp(min=1.0).mean()
        state = h, after.rsample()
        states.append(torch.cat(state, -1))
    states = torch.stack(states)
    loss = F.mse_loss(world.decode(states), seen) + F.mse_loss(world.reward(states).squeeze(-1), rewards) + gap / 20
    by_world.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(world.parameters(), 100)
    by_world.step()
    world.requires_grad_(False)
    features = states.detach().flatten(0, 1)
    state, dreamt = (features[:, :200], features[:, 200:]), [features]
    for _ in range(12):
        act = normal(actor(dreamt[-1])).rsample().tanh()
        h, chance = world.dream(state, act)
        state = h, chance.rsample()
        dreamt.append(torch.cat(state, -1))
    dreamt = torch.stack(dreamt)
    rewards, values = world.reward(dreamt).squeeze(-1), slow(dreamt).squeeze(-1)
    total, targets = values[-1], []
    for t in reversed(range(12)):
        total = rewards[t] + 0.99 * (0.05 * values[t + 1] + 0.95 * total)
        targets.append(total)
    targets = torch.stack(targets[::-1])
    by_actor.zero_grad()
    (-targets.mean()).backward()
    by_actor.step()
    by_critic.zero_grad()
    F.mse_loss(critic(dreamt[:-1].detach()).squeeze(-1), targets.detach()).backward()
    by_critic.step()
    world.requires_grad_(True)
    if step % 2 == 0:
        slow.load_state_dict(critic.state_dict())
    with torch.no_grad():
        h, chance = torch.zeros(1, 200, device=device), torch.zeros(1, 30, device=device)
        for _ in range(10):
            act = normal(actor(torch.cat([h, chance], -1))).sample().tanh()
            h, before = world.dream((h, chance), act)
            chance = before.sample()
            buffer.add(torch.randn(300), act[0].cpu(), torch.randn(()))
