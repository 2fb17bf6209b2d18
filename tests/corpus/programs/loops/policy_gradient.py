# A policy gradient: log-probabilities of a whole episode are kept in a list, with one backward for all of them.
# devices: cpu cuda
import corpus_state
import torch
from torch import nn
from torch.distributions import Categorical

corpus_state.seed()
device = corpus_state.DEVICE
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(22):
    state, chances, rewards = torch.zeros(3, device=device), [], []
    for _ in range(6):
        policy = Categorical(logits=model(state))
        action = policy.sample()
        chances.append(policy.log_prob(action))
        state = torch.tanh(state + action - 0.5 + 0.1 * torch.randn(3, device=device))
        rewards.append(state.sum().item())
    returns = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(chances) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
corpus_state.report(model=model, recording_over=True)
