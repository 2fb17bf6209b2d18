# Q-learning: a replay buffer in a deque, actions drawn by random, a target network that is copied.
# devices: cpu cuda
import collections
import random

import corpus_state
import torch
from torch import nn

corpus_state.seed()
device = corpus_state.DEVICE
online, target = (nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).to(device) for _ in range(2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.RMSprop(online.parameters(), lr=1e-3)
buffer = collections.deque(maxlen=50)
state = torch.zeros(4, device=device)
for number in range(60):
    with torch.no_grad():
        action = random.randrange(3) if random.random() < 0.3 else int(online(state).argmax())
    following = torch.tanh(state + 0.1 * (action - 1) + 0.01 * torch.randn(4, device=device))
    buffer.append((state, action, float(following.sum()), following))
    state = following
    if len(buffer) < 16:
        continue
    states, actions, rewards, nexts = zip(*random.sample(list(buffer), 8), strict=True)
    with torch.no_grad():
        wanted = torch.tensor(rewards, device=device) + 0.9 * target(torch.stack(nexts)).max(dim=1).values
    chosen = torch.tensor(actions, device=device)[:, None]
    loss = nn.functional.smooth_l1_loss(online(torch.stack(states)).gather(1, chosen)[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 1.0)
    optimizer.step()
    if number % 20 == 0:
        target.load_state_dict(online.state_dict())
print(len(buffer), f"{loss.item():.5f}")
corpus_state.report(model=[online, target], recording_over=True)
