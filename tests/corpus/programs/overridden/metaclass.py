# Modules made by a metaclass that counts instance checks and calls.
import corpus_state
import torch


class Meta(type):
    asked = []

    def __call__(cls, *args, **kwargs):
        Meta.asked.append("call")
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance):
        Meta.asked.append("instance")
        return super().__instancecheck__(instance)

    def __eq__(cls, other):
        Meta.asked.append("eq")
        return cls is other

    def __hash__(cls):
        Meta.asked.append("hash")
        return id(cls)


class Layer(torch.nn.Linear, metaclass=Meta):
    pass


corpus_state.seed()
model = torch.nn.Sequential(Layer(8, 8), Layer(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


made = len(Meta.asked)
for _ in range(30):
    step()
print(Meta.asked[made:])
corpus_state.report(model=model, recording_over=True)
