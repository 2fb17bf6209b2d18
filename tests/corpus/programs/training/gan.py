# A generator and a discriminator with an optimizer each.
import corpus_state
import torch

corpus_state.seed()
generator = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
critic = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizers = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in (generator, critic)]
for _ in range(30):
    fake = generator(torch.randn(8, 4))
    optimizers[1].zero_grad()
    (critic(fake.detach()).mean() - critic(torch.randn(8, 2)).mean()).backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    (-critic(fake).mean()).backward()
    optimizers[0].step()
corpus_state.report(model=[generator, critic], recording_over=True)
