"""Soft actor-critic with twin critics and a tuned temperature, on a pendulum-like task."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp(inputs, outputs, width=512):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class Actor(nn.Module):
    def __init__(self, states, actions):
        super().__init__()
        self.net = mlp(states, 2 * actions)

    def forward(self, state):
        mean, log_std = self.net(state).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        log_prob = (normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1, keepdim=True)
        return action, log_prob


class Critic(nn.Module):
    def __init__(self, states, actions):
        super().__init__()
        self.one, self.two = mlp(states + actions, 1), mlp(states + actions, 1)

    def forward(self, state, action):
        both = torch.cat([state, action], -1)
        return self.one(both), self.two(both)


class Replay:
    def __init__(self, size, states, actions):
        self.states = torch.zeros(size, states, device=device)
        self.actions = torch.zeros(size, actions, device=device)
        self.rewards, self.dones = torch.zeros(size, 1, device=device), torch.zeros(size, 1, device=device)
        self.next = torch.zeros(size, states, device=device)
        self.count, self.size = 0, size

    def add(self, state, action, reward, following, done):
        place = self.count % self.size
        self.states[place], self.actions[place] = torch.as_tensor(state), torch.as_tensor(action)
        self.rewards[place], self.dones[place] = reward, float(done)
        self.next[place] = torch.as_tensor(following)
        self.count += 1

    def sample(self, batch):
        rows = torch.randint(min(self.count, self.size), (batch,), device=device)
        return self.states[rows], self.actions[rows], self.rewards[rows], self.next[rows], self.dones[rows]


torch.manual_seed(0)
numbers = np.random.default_rng(0)
states, actions = 24, 6
actor, critic, target = (
    Actor(states, actions).to(device),
    Critic(states, actions).to(device),
    Critic(states, actions).to(device),
)
target.load_state_dict(critic.state_dict())
log_alpha = torch.zeros(1, requires_grad=True, device=device)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=3e-4)
replay = Replay(20000, states, actions)
state = numbers.standard_normal(states).astype(np.float32)
for step in range(320):
    with torch.no_grad():
        action = actor(torch.as_tensor(state, device=device).unsqueeze(0))[0].squeeze(0).cpu().numpy()
    following = numbers.standard_normal(states).astype(np.float32)
    replay.add(state, action, float(action.sum()), following, step % 50 == 49)
    state = following
    if step < 300:
        continue
    s, a, r, n, d = replay.sample(1024)
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        na, logp = actor(n)
        goal = r + 0.99 * (1 - d) * (torch.min(*target(n, na)) - alpha * logp)
    one, two = critic(s, a)
    critic_loss = nn.functional.mse_loss(one, goal) + nn.functional.mse_loss(two, goal)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    new, logp = actor(s)
    actor_loss = (alpha * logp - torch.min(*critic(s, new))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    alpha_loss = -(log_alpha * (logp.detach() - actions)).mean()
    alpha_optimizer.zero_grad()
    alpha_loss.backward()
    alpha_optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), critic.parameters(), strict=True):
            mine.lerp_(theirs, 0.005)
