# Hooks before and after loading a state, while training goes on.
import corpus_state
import torch

corpus_state.seed()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


events = []
model.register_load_state_dict_pre_hook(lambda module, state, prefix, *_: events.append(("before", prefix, len(state))))
model.register_load_state_dict_post_hook(lambda module, keys: events.append(("after", list(keys.missing_keys))))
optimizer.register_load_state_dict_pre_hook(lambda one, state: events.append(("optimizer", sorted(state))))
for number in range(24):
    step()
    if number % 5 == 2:
        model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})
        optimizer.load_state_dict(optimizer.state_dict())
print(len(events), events[:3])
corpus_state.report(model=model, recording_over=True)
