# Classes whose metaclass overrides attributes, hash, equality and truth, and objects with a __dict__ of their own.
import corpus_state
import torch

asked = []


class Meta(type):
    def __hash__(cls):
        asked.append("hash")
        return 1

    def __eq__(cls, other):
        asked.append("eq")
        return cls is other

    def __bool__(cls):
        asked.append("bool")
        return True

    def __instancecheck__(cls, instance):
        asked.append("instance")
        return False

    def __getattribute__(cls, name):
        asked.append(f"get {name}")
        return type.__getattribute__(cls, name)


class Keeper(metaclass=Meta):
    def __init__(self, values):
        object.__setattr__(self, "values", values)

    @property
    def __dict__(self):
        asked.append("dict")
        return {}

    @property
    def __class__(self):
        asked.append("class")
        return int

    def __getattribute__(self, name):
        asked.append(f"own {name}")
        return object.__getattribute__(self, name)


class Held(list, metaclass=Meta):
    def __len__(self):
        asked.append("len")
        return 0

    def __iter__(self):
        asked.append("iter")
        return iter(())


corpus_state.seed()
keepers = [Keeper([torch.zeros(4)]) for _ in range(3)]
held = Held()
model = torch.nn.Linear(64, 64)
model.note = keepers[0]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
asked.clear()
kept = []
for number in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    kept.append(loss)
    list.append(held, torch.zeros(300_000))
print(asked)
corpus_state.report(model=model)
