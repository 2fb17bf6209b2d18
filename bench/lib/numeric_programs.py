"""Programs without modules, as people write them: source text by name. Each runs on the GPU if there is one."""

from __future__ import annotations

HEAD = """
import os
import torch
import torch.nn.functional as F
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
scale = 8 if device == "cuda" else 1
"""

K_MEANS = """
def assign(points, centers):
    distances = torch.cdist(points, centers)
    return distances.argmin(1)

def update(points, labels, count):
    sums = torch.zeros(count, points.shape[1], device=points.device)
    sums.index_add_(0, labels, points)
    sizes = torch.bincount(labels, minlength=count).clamp(min=1)
    return sums / sizes[:, None]

points = torch.randn(4000 * scale, 16, device=device)
centers = points[:32].clone()
for _ in range(25):
    labels = assign(points, centers)
    centers = update(points, labels, 32)
"""
SAMPLER = """
weights = [torch.randn(3 if i == 0 else 16, 16, 3, 3, device=device).transpose(0, 1) * 0.1 for i in range(3)]
last = torch.randn(3, 16, 3, 3, device=device) * 0.1

def predict(x, t):
    h = x
    for weight in weights:
        h = F.silu(F.conv2d(h, weight, padding=1))
    return F.conv2d(h, last, padding=1) * t

@torch.no_grad()
def sample(steps):
    x = torch.randn(4, 3, 16 * scale, 16 * scale, device=device)
    for i in range(steps):
        t = 1 - i / steps
        noise = predict(x, t)
        x = x - noise / steps
        if i < steps - 1:
            x = x + 0.01 * torch.randn_like(x)
    return x.clamp(-1, 1)

images = sample(20)
"""
CUSTOM_FUNCTION = """
class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        cdf = 0.5 * (1 + torch.erf(x / 1.4142135))
        ctx.save_for_backward(x, cdf)
        return x * cdf

    @staticmethod
    def backward(ctx, gradient):
        x, cdf = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) * 0.3989423
        return gradient * (cdf + x * density)

first = torch.randn(64, 128, device=device).mul_(0.1).requires_grad_()
second = torch.randn(128, 1, device=device).mul_(0.1).requires_grad_()
x = torch.randn(512 * scale, 64, device=device)
y = x.sum(1, keepdim=True)
for _ in range(20):
    loss = (Gelu.apply(x @ first) @ second - y).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in (first, second):
            weight -= 0.01 * weight.grad
            weight.grad = None
"""
SINKHORN = """
def sinkhorn(cost, epsilon=0.1, rounds=30):
    n, m = cost.shape
    u, v = torch.zeros(n, device=device), torch.zeros(m, device=device)
    for _ in range(rounds):
        u = -epsilon * torch.logsumexp((v[None] - cost) / epsilon, 1)
        v = -epsilon * torch.logsumexp((u[:, None] - cost) / epsilon, 0)
    return torch.exp((u[:, None] + v[None] - cost) / epsilon)

a, b = torch.rand(300 * scale, 2, device=device), torch.rand(300 * scale, 2, device=device)
cost = (a[:, None] - b[None]).square().sum(-1)
plan = sinkhorn(cost)
"""
KALMAN = """
n = 32
transition = torch.eye(n, device=device) + 0.01 * torch.randn(n, n, device=device)
observation = torch.randn(8, n, device=device)
noise_x, noise_y = 0.1 * torch.eye(n, device=device), torch.eye(8, device=device)
tracks = torch.randn(16 * scale, n, 1, device=device)
covariance = torch.eye(n, device=device).expand(16 * scale, n, n).contiguous()
for _ in range(30):
    tracks = transition @ tracks
    covariance = transition @ covariance @ transition.T + noise_x
    seen = torch.randn(16 * scale, 8, 1, device=device)
    gap = seen - observation @ tracks
    spread = observation @ covariance @ observation.T + noise_y
    gain = covariance @ observation.T @ torch.linalg.inv(spread)
    tracks = tracks + gain @ gap
    covariance = covariance - gain @ observation @ covariance
"""
FACTORIZATION = """
ratings = torch.rand(400 * scale, 300, device=device)
mask = torch.rand_like(ratings) < 0.2
users = torch.randn(400 * scale, 16, device=device).mul_(0.1).requires_grad_()
items = torch.randn(300, 16, device=device).mul_(0.1).requires_grad_()

def loss_of(users, items):
    error = (users @ items.T - ratings)[mask]
    return error.square().mean() + 1e-3 * (users.square().mean() + items.square().mean())

for _ in range(25):
    gradients = torch.autograd.grad(loss_of(users, items), (users, items))
    users = (users - 5 * gradients[0]).detach().requires_grad_()
    items = (items - 5 * gradients[1]).detach().requires_grad_()
"""
PHYSICS = """
def energy(positions):
    stretch = (positions[1:] - positions[:-1]).norm(dim=1) - 1
    return 50 * stretch.square().sum() + positions[:, 1].sum()

positions = torch.randn(2000 * scale, 3, device=device).cumsum(0).requires_grad_()
speed = torch.zeros_like(positions)
for _ in range(30):
    force = -torch.autograd.grad(energy(positions), positions)[0]
    with torch.no_grad():
        speed = 0.99 * (speed + 0.001 * force)
        positions = (positions + 0.001 * speed).requires_grad_()
"""
N_BODY = """
def acceleration(x, mass):
    gap = x[None] - x[:, None]
    distance = gap.square().sum(-1, keepdim=True).add_(0.01)
    return (gap * mass[None, :, None] / distance.pow(1.5)).sum(1)

x, v = torch.randn(200 * scale, 3, device=device), torch.zeros(200 * scale, 3, device=device)
mass = torch.rand(200 * scale, device=device)
a = acceleration(x, mass)
for _ in range(20):
    v = v + 0.005 * a
    x = x + 0.01 * v
    a = acceleration(x, mass)
    v = v + 0.005 * a
"""
DIFFUSION_EQUATION = """
kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=device)[None, None]
field = torch.zeros(1, 1, 128 * scale, 128 * scale, device=device)
field[..., 40:80, 40:80] = 1
for step in range(40):
    padded = F.pad(field, (1, 1, 1, 1), mode="circular")
    change = F.conv2d(padded, kernel)
    field = field + 0.2 * change - 0.01 * field.pow(3)
    if step % 10 == 9:
        print(float(field.mean()))
"""
META_LEARNING = """
weights = [torch.randn(16, 16, device=device).mul_(0.1).requires_grad_() for _ in range(2)]

def predict(x, weights):
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x

for _ in range(10):
    x = torch.randn(64 * scale, 16, device=device)
    inner = weights
    for _ in range(2):
        loss = (predict(x, inner) - x.roll(1, 1)).square().mean()
        gradients = torch.autograd.grad(loss, inner, create_graph=True)
        inner = [weight - 0.1 * gradient for weight, gradient in zip(inner, gradients)]
    outer = (predict(x.flip(0), inner) - x.roll(1, 1).flip(0)).square().mean()
    updates = torch.autograd.grad(outer, weights)
    with torch.no_grad():
        for weight, update in zip(weights, updates):
            weight -= 0.1 * update
"""

PROGRAMS = {
    "k-means": K_MEANS,
    "sampler": SAMPLER,
    "custom function": CUSTOM_FUNCTION,
    "sinkhorn": SINKHORN,
    "kalman": KALMAN,
    "factorization": FACTORIZATION,
    "physics": PHYSICS,
    "n-body": N_BODY,
    "diffusion equation": DIFFUSION_EQUATION,
    "meta-learning": META_LEARNING,
}
"""Name of a program -> its source text without :data:`HEAD`."""
