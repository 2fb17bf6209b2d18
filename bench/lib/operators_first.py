"""The operators with which the rules were made: for bench/estimate/operator_memory.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from operator_cases import List, bf16, f16, f32, floats, gpu, ids
from torch.nn.attention import SDPBackend, sdpa_kernel

FIRST = List()
case, over = FIRST.case, FIRST.over

# elementwise, one input
BIG = (64, 256, 1024)
over(
    {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "mish": F.mish,
        "elu": F.elu,
        "leaky_relu": F.leaky_relu,
        "hardswish": F.hardswish,
        "softplus": F.softplus,
        "sigmoid": torch.sigmoid,
        "logsigmoid": F.logsigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "log1p abs": lambda x: torch.log1p(x.abs()),
        "pow 3": lambda x: x.pow(3),
        "clamp": lambda x: x.clamp(-1, 1),
        "rsqrt": lambda x: (x * x + 1).rsqrt(),
        "erf": torch.erf,
        "dropout": lambda x: F.dropout(x, 0.1),
        "alpha_dropout": lambda x: F.alpha_dropout(x, 0.1),
        "softmax": lambda x: x.softmax(-1),
        "softmax dim 1": lambda x: x.softmax(1),
        "log_softmax": lambda x: x.log_softmax(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "glu": F.glu,
        "normalize": lambda x: F.normalize(x, dim=-1),
        "norm": lambda x: x.norm(),
        "norm dim": lambda x: x.norm(dim=-1),
        "var dim": lambda x: x.var(-1),
        "std all": lambda x: x.std(),
        "mean dims": lambda x: x.mean((0, 1)),
        "sum": lambda x: x.sum(),
        "sum dim 0": lambda x: x.sum(0),
        "sum dim 1": lambda x: x.sum(1),
        "sum last": lambda x: x.sum(-1),
        "amax": lambda x: x.amax(-1),
        "max dim": lambda x: x.max(-1).values,
        "max all": lambda x: x.max(),
        "prod dim": lambda x: x.prod(-1),
        "cumsum": lambda x: x.cumsum(-1),
        "cumsum dim 0": lambda x: x.cumsum(0),
        "cumprod": lambda x: x.cumprod(-1),
        "flip": lambda x: x.flip(-1),
        "roll": lambda x: x.roll(3, 1),
        "transpose contiguous": lambda x: x.transpose(1, 2).contiguous(),
        "cat self": lambda x: torch.cat([x, x], -1),
        "stack": lambda x: torch.stack([x, x]),
        "chunk mul": lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
        "repeat": lambda x: x.repeat(1, 2, 1),
        "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
        "pad": lambda x: F.pad(x, (1, 1)),
        "index rows": lambda x: x[:, torch.arange(0, 256, 2, device=gpu)],
        "strided slice": lambda x: x[..., ::2] * 2,
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
        "tril": lambda x: x.tril(),
        "sort": lambda x: x.sort(-1).values,
        "topk 8": lambda x: x.topk(8, -1).values,
        "topk 200": lambda x: x.topk(200, -1).values,
        "float": lambda x: x.float(),
        "to half": lambda x: x.half(),
        "layer_norm": lambda x: F.layer_norm(x, (1024,)),
        "rms_norm": lambda x: F.rms_norm(x, (1024,)),
        "logcumsumexp": lambda x: x.logcumsumexp(-1),
        "cummax": lambda x: x.cummax(-1).values,
        "median dim": lambda x: x.median(-1).values,
        "kthvalue": lambda x: x.kthvalue(5, -1).values,
        "unfold": lambda x: x.unfold(1, 8, 4) * 1.0,
        "diff": lambda x: x.diff(dim=-1),
        "renorm": lambda x: x.renorm(2, 0, 1.0),
        "gumbel": lambda x: F.gumbel_softmax(x),
        "gumbel hard": lambda x: F.gumbel_softmax(x, hard=True),
        "einsum": lambda x: torch.einsum("abc,abd->acd", x[:, :, :64], x[:, :, 64:128]),
    },
    lambda dtype: [floats(*BIG, dtype=dtype)],
)
# two inputs
over(
    {
        "add": torch.add,
        "mul": torch.mul,
        "div": torch.div,
        "add row": lambda a, b: a + b[0, 0],
        "mul column": lambda a, b: a * b[:, :, :1],
        "mul broadcast middle": lambda a, b: a * b[:, :1],
        "atan2": torch.atan2,
        "maximum": torch.maximum,
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "smooth_l1": F.smooth_l1_loss,
        "huber": F.huber_loss,
        "lerp": lambda a, b: a.lerp(b, 0.3),
        "addcmul": lambda a, b: torch.addcmul(a, a, b),
        "cosine": lambda a, b: F.cosine_similarity(a, b, dim=-1),
        "pairwise": lambda a, b: F.pairwise_distance(a, b),
        "bce logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid().detach()),
        "kl": lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
        "gaussian nll": lambda a, b: F.gaussian_nll_loss(a, b.detach(), (a * a + 1)),
        "poisson nll": lambda a, b: F.poisson_nll_loss(a, b.detach().abs()),
        "bmm": lambda a, b: a @ b.transpose(1, 2),
        "bmm batch": torch.bmm if False else (lambda a, b: torch.bmm(a.transpose(1, 2), b)),
        "einsum outer": lambda a, b: torch.einsum("bic,bjc->bij", a, b),
        "matmul 2d": lambda a, b: a.flatten(0, 1) @ b.flatten(0, 1)[:1024].T,
        "linear no bias": lambda a, b: F.linear(a, b[0, :, :]),
        "linear bias": lambda a, b: F.linear(a, b[0], b[0, :, 0]),
        "bilinear": lambda a, b: F.bilinear(a[:8, :8, :64], b[:8, :8, :64], a[0, :64, :64].expand(32, 64, 64), None),
        "prelu": lambda a, b: F.prelu(a, b[0, :, 0]),
        "margin ranking": lambda a, b: F.margin_ranking_loss(a, b, torch.ones_like(a)),
        "triplet": lambda a, b: F.triplet_margin_loss(a.flatten(1), b.flatten(1), a.flatten(1).detach()),
        "outer": lambda a, b: torch.outer(a[0, :, 0].repeat(8), b[0, 0].repeat(2)),
        "mv": lambda a, b: a[0] @ b[0, 0],
        "dot": lambda a, b: a.flatten() @ b.flatten(),
        "vdot": lambda a, b: torch.vdot(a.flatten(), b.flatten()),
        "tensordot": lambda a, b: torch.tensordot(a[:8], b[:8], dims=([1, 2], [1, 2])),
        "kron": lambda a, b: torch.kron(a[0, :32, :32], b[0, :32, :32]),
    },
    lambda dtype: [floats(*BIG, dtype=dtype), floats(*BIG, dtype=dtype)],
)
over(
    {
        "cdist": lambda a, b: torch.cdist(a, b),
        "cdist exact": lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"),
        "cdist 1": lambda a, b: torch.cdist(a, b, p=1.0),
    },
    lambda dtype: [floats(4, 1024, 64), floats(4, 768, 64)],
    (f32,),
)
# classes and indices
over(
    {
        "cross_entropy": F.cross_entropy,
        "cross_entropy smooth": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        "cross_entropy ignore": lambda x, t: F.cross_entropy(x, t, ignore_index=3),
        "nll": lambda x, t: F.nll_loss(x.log_softmax(-1), t),
        "gather": lambda x, t: x.gather(1, t[:, None]),
        "multi margin": lambda x, t: F.multi_margin_loss(x, t),
        "index pick": lambda x, t: x[torch.arange(len(t), device=gpu), t],
        "one hot": lambda x, t: x * F.one_hot(t, x.shape[1]),
    },
    lambda dtype: [floats(8192, 4096, dtype=dtype), ids(4096, 8192)],
)
over(
    {"cross_entropy 2d": F.cross_entropy, "nll 2d": lambda x, t: F.nll_loss(x.log_softmax(1), t)},
    lambda dtype: [floats(16, 21, 256, 256, dtype=dtype), ids(21, 16, 256, 256)],
)
over(
    {
        "embedding": lambda w, t: F.embedding(t, w),
        "embedding padding": lambda w, t: F.embedding(t, w, padding_idx=0),
        "index rows of table": lambda w, t: w[t],
        "index_select": lambda w, t: w.index_select(0, t.flatten()),
        "embedding_bag": lambda w, t: F.embedding_bag(t, w, mode="mean"),
        "embedding_bag sum": lambda w, t: F.embedding_bag(t, w, mode="sum"),
        "gather rows": lambda w, t: w.gather(0, t.flatten()[:, None].expand(-1, w.shape[1])),
    },
    lambda dtype: [floats(30000, 512, dtype=dtype), ids(30000, 64, 256)],
)
over(
    {"embedding small": lambda w, t: F.embedding(t, w)}, lambda dtype: [floats(500, 256, dtype=dtype), ids(500, 8, 128)]
)
over(
    {
        "scatter_add": lambda x, t: torch.zeros(512, 256, device=gpu, dtype=x.dtype).scatter_add(
            0, t[:, None].expand(-1, 256), x
        ),
        "index_add": lambda x, t: torch.zeros(512, 256, device=gpu, dtype=x.dtype).index_add(0, t, x),
        "scatter_reduce": lambda x, t: torch.zeros(512, 256, device=gpu, dtype=x.dtype).scatter_reduce(
            0, t[:, None].expand(-1, 256), x, "amax"
        ),
        "index_put": lambda x, t: torch.zeros(512, 256, device=gpu, dtype=x.dtype).index_put((t,), x),
        "index_put accumulate": lambda x, t: torch.zeros(512, 256, device=gpu, dtype=x.dtype).index_put(
            (t,), x, accumulate=True
        ),
        "index_copy": lambda x, t: torch.zeros(65536, 256, device=gpu, dtype=x.dtype).index_copy(
            0, torch.arange(65536, device=gpu), x
        ),
        "segment mean": lambda x, t: torch.segment_reduce(
            x.float(), "mean", lengths=torch.full((512,), 128, device=gpu)
        ),
    },
    lambda dtype: [floats(65536, 256, dtype=dtype), ids(512, 65536)],
)
over(
    {
        "boolean mask": lambda x, m: x[m],
        "masked_select": lambda x, m: x.masked_select(m),
        "nonzero": lambda x, m: m.nonzero(),
        "where indices": lambda x, m: torch.where(m),
        "masked put": lambda x, m: x.masked_scatter(m, x.detach()),
    },
    lambda dtype: [
        floats(4096, 1024, dtype=dtype),
        (torch.arange(4096 * 1024, device=gpu).view(4096, 1024) % 2).bool(),
    ],
)
over(
    {
        "unique": lambda t: t.unique(),
        "unique inverse": lambda t: t.unique(return_inverse=True),
        "bincount": lambda t: t.bincount(minlength=1000),
        "argsort": lambda t: t.argsort(),
        "sort ints": lambda t: t.sort(),
        "histc": lambda t: t.float().histc(100),
        "searchsorted": lambda t: torch.searchsorted(torch.arange(1000, device=gpu), t),
        "cumsum ints": lambda t: t.cumsum(0),
        "multinomial": lambda t: torch.multinomial(torch.ones(512, 8192, device=gpu), 8),
        "multinomial replace": lambda t: torch.multinomial(torch.ones(512, 8192, device=gpu), 8, replacement=True),
        "randperm": lambda t: torch.randperm(1_000_000, device=gpu),
        "bernoulli": lambda t: torch.full((4096, 1024), 0.5, device=gpu).bernoulli(),
        "isin": lambda t: torch.isin(t, torch.arange(50, device=gpu)),
        "quantile": lambda t: t.float().quantile(0.9),
        "median all": lambda t: t.float().median(),
        "topk ints": lambda t: t.topk(1000),
        "unique rows": lambda t: t.view(-1, 4)[:50000].unique(dim=0),
        "unique consecutive": lambda t: t.unique_consecutive(),
        "cov": lambda t: torch.cov(t.float().view(256, -1)),
        "corrcoef": lambda t: torch.corrcoef(t.float().view(256, -1)),
        "argmax": lambda t: t.argmax(),
        "any": lambda t: (t > 5).any(),
        "bucketize": lambda t: torch.bucketize(t.float(), torch.arange(100.0, device=gpu)),
    },
    lambda dtype: [ids(1000, 1_000_000)],
    (f32,),
)
# pictures
PICTURE = (16, 64, 128, 128)
pictures = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, torch.ones(64, device=gpu), torch.zeros(64, device=gpu), True),
    "group_norm": lambda x: F.group_norm(x, 8),
    "instance_norm": lambda x: F.instance_norm(x),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "max_pool 3": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive avg 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive avg 7": lambda x: F.adaptive_avg_pool2d(x, 7),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, 7),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear up": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bilinear antialias": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
    "area": lambda x: F.interpolate(x, size=(50, 50), mode="area"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
    "unfold pictures": lambda x: F.unfold(x[:4], 3, padding=1),
    "reflect pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicate pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "local_response": lambda x: F.local_response_norm(x, 5),
    "dropout2d": lambda x: F.dropout2d(x, 0.1),
    "lp_pool": lambda x: F.lp_pool2d(x, 2, 2),
    "permute flat": lambda x: x.flatten(2).transpose(1, 2).contiguous(),
    "mean hw": lambda x: x.mean((2, 3)),
    "relu_": lambda x: F.relu_(x * 1.0),
    "fractional": lambda x: F.fractional_max_pool2d(x, 3, output_size=50),
}
for layout in (False, True):
    over(
        {f"{name}{' channels_last' if layout else ''}": call for name, call in pictures.items()},
        lambda dtype, layout=layout: [floats(*PICTURE, dtype=dtype, last=layout)],
    )
    for aligned in (False, True):
        for mode in ("bilinear", "nearest", "bicubic"):
            tail = f"{' aligned' if aligned else ''}{' channels_last' if layout else ''}"
            over(
                {f"grid_sample {mode}{tail}": partial(F.grid_sample, mode=mode, align_corners=aligned)},
                lambda dtype, layout=layout: [
                    floats(*PICTURE, dtype=dtype, last=layout),
                    (torch.rand(16, 96, 96, 2, device=gpu) * 2 - 1).to(dtype).requires_grad_(),
                ],
                (f32, bf16) if mode == "bilinear" else (f32,),
            )
    over(
        {
            f"affine_grid{' channels_last' if layout else ''}": lambda x, t: F.grid_sample(
                x, F.affine_grid(t, list(x.shape), align_corners=False), align_corners=False
            )
        },
        lambda dtype, layout=layout: [floats(*PICTURE, dtype=dtype, last=layout), floats(16, 2, 3, dtype=dtype)],
        (f32,),
    )
    over(
        {
            f"prelu pictures{' channels_last' if layout else ''}": lambda x, w: F.prelu(x, w),
            f"scale channels{' channels_last' if layout else ''}": lambda x, w: x * w[None, :, None, None],
        },
        lambda dtype, layout=layout: [floats(*PICTURE, dtype=dtype, last=layout), floats(64, dtype=dtype)],
    )
over({"fold": lambda x: F.fold(x, (64, 64), 3, padding=1)}, lambda dtype: [floats(8, 64 * 9, 4096, dtype=dtype)])
VOLUME = (4, 32, 32, 64, 64)
over(
    {
        "max_pool3d": lambda x: F.max_pool3d(x, 2),
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
        "trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        "batch_norm 3d": lambda x: F.batch_norm(x, None, None, None, None, True),
        "instance_norm 3d": lambda x: F.instance_norm(x),
        "adaptive avg 3d": lambda x: F.adaptive_avg_pool3d(x, 4),
    },
    lambda dtype: [floats(*VOLUME, dtype=dtype)],
)
over(
    {"grid_sample 3d": lambda x, g: F.grid_sample(x, g, align_corners=False)},
    lambda dtype: [floats(*VOLUME), (torch.rand(4, 32, 64, 64, 3, device=gpu) * 2 - 1).requires_grad_()],
    (f32,),
)
SERIES = (32, 128, 4096)
over(
    {
        "max_pool1d": lambda x: F.max_pool1d(x, 4),
        "avg_pool1d": lambda x: F.avg_pool1d(x, 4),
        "linear up": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        "batch_norm 1d": lambda x: F.batch_norm(x, None, None, None, None, True),
        "batch_norm flat": lambda x: F.batch_norm(x.transpose(1, 2).reshape(-1, 128), None, None, None, None, True),
        "adaptive avg 1d": lambda x: F.adaptive_avg_pool1d(x, 10),
    },
    lambda dtype: [floats(*SERIES, dtype=dtype)],
)
# transforms and complex numbers
over(
    {
        "rfft": lambda x: torch.fft.rfft(x).abs(),
        "fft": lambda x: torch.fft.fft(x).abs(),
        "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        "fft odd": lambda x: torch.fft.rfft(x[..., :1021]).abs(),
        "rfft2": lambda x: torch.fft.rfft2(x).abs(),
        "fft2": lambda x: torch.fft.fft2(x).abs(),
        "ifft2": lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real,
        "fftn": lambda x: torch.fft.fftn(x).abs(),
        "rfft dim 1": lambda x: torch.fft.rfft(x, dim=1).abs(),
        "stft": lambda x: torch.stft(
            x.flatten(1)[:, :65536], 512, 128, window=torch.hann_window(512, device=gpu), return_complex=True
        ).abs(),
        "fft shift": lambda x: torch.fft.fftshift(torch.fft.fft2(x)).abs(),
        "complex mul": lambda x: torch.view_as_real(
            torch.view_as_complex(x.view(64, 256, 512, 2)) * torch.view_as_complex(x.view(64, 256, 512, 2)[:1, :1])
        ),
        "polar": lambda x: torch.polar(x.abs(), x).real,
        "istft": lambda x: torch.istft(
            torch.stft(
                x.flatten(1)[:, :65536], 512, 128, window=torch.hann_window(512, device=gpu), return_complex=True
            ),
            512,
            128,
            window=torch.hann_window(512, device=gpu),
        ),
        "rfft conv": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=2048) * torch.fft.rfft(x[:, :1], n=2048), n=2048),
    },
    lambda dtype: [floats(*BIG)],
    (f32,),
)


# linear algebra
def square(*shape: int) -> list[torch.Tensor]:
    base = torch.randn(*shape, device=gpu) / shape[-1] ** 0.5
    return [(base @ base.mT + torch.eye(shape[-1], device=gpu)).detach().requires_grad_()]


LINALG = {
    "cholesky": torch.linalg.cholesky,
    "cholesky_ex": lambda a: torch.linalg.cholesky_ex(a).L,
    "cholesky_solve": lambda a: torch.cholesky_solve(torch.ones_like(a), torch.linalg.cholesky(a)),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
    "inv": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, torch.ones_like(a)),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a, torch.ones_like(a), upper=False),
    "det": torch.linalg.det,
    "slogdet": lambda a: torch.linalg.slogdet(a).logabsdet,
    "logdet": torch.logdet,
    "lu": lambda a: torch.linalg.lu(a).L,
    "lu_factor": lambda a: torch.linalg.lu_factor(a).LU,
    "qr": lambda a: torch.linalg.qr(a).R,
    "svdvals": torch.linalg.svdvals,
    "svd": lambda a: torch.linalg.svd(a).S,
    "eigh": lambda a: torch.linalg.eigh(a).eigenvalues,
    "eigvalsh": torch.linalg.eigvalsh,
    "pinv": torch.linalg.pinv,
    "matrix_exp": torch.matrix_exp,
    "matrix_power": lambda a: torch.linalg.matrix_power(a, 5),
    "lstsq": lambda a: torch.linalg.lstsq(a, torch.ones_like(a)).solution,
    "matrix norm": torch.linalg.matrix_norm,
    "householder": lambda a: torch.linalg.householder_product(a, a[..., 0]),
    "ldl": lambda a: torch.linalg.ldl_factor(a.detach()).LD,
    "trace": lambda a: a.diagonal(dim1=-2, dim2=-1).sum(-1),
    "addmm": lambda a: torch.addmm(a, a, a) if a.dim() == 2 else torch.baddbmm(a, a, a),
    "multi_dot": lambda a: torch.linalg.multi_dot([a, a, a]) if a.dim() == 2 else a @ a @ a,
    "addmv": lambda a: torch.addmv(a[0], a, a[1]) if a.dim() == 2 else a[..., 0],
    "addr": lambda a: torch.addr(a, a[0], a[1]) if a.dim() == 2 else a * 1,
}
for name, call in LINALG.items():
    for shape in ((512, 512), (64, 64), (16, 128, 128), (2048, 8, 8)):
        if name in ("svd", "svdvals", "pinv", "eigh", "eigvalsh", "lstsq") and shape == (2048, 8, 8):
            shape = (256, 8, 8)
        case(f"{name} {'x'.join(map(str, shape))}", lambda shape=shape: square(*shape), call)


# attention
def heads(dtype: torch.dtype, length: int = 512, width: int = 64, others: int = 12) -> list[torch.Tensor]:
    return [floats(8, 12 if index == 0 else others, length, width, dtype=dtype) for index in range(3)]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: Any = None, **how: Any) -> torch.Tensor:
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, **how)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, **how)


for width in (32, 64, 80, 128):
    over(
        {
            f"attention {width}": attended,
            f"attention causal {width}": lambda q, k, v: attended(q, k, v, is_causal=True),
            f"attention dropout {width}": lambda q, k, v: attended(q, k, v, dropout_p=0.1),
            f"attention efficient {width}": lambda q, k, v: attended(
                q, k, v, SDPBackend.EFFICIENT_ATTENTION, is_causal=True
            ),
            f"attention math {width}": lambda q, k, v: attended(q, k, v, SDPBackend.MATH),
        },
        lambda dtype, width=width: heads(dtype, width=width),
    )
over(
    {
        "attention mask": lambda q, k, v: attended(
            q, k, v, attn_mask=torch.ones(512, 512, device=gpu, dtype=torch.bool).tril()
        ),
        "attention float mask": lambda q, k, v: attended(
            q, k, v, attn_mask=torch.zeros(8, 1, 512, 512, device=gpu, dtype=q.dtype)
        ),
        "attention learned bias": lambda q, k, v: attended(
            q, k, v, attn_mask=(q[:, :, :, :1] * k[:, :, :, 0][:, :, None])
        ),
        "attention by hand": lambda q, k, v: ((q @ k.mT) / 8).softmax(-1) @ v,
        "attention permuted": lambda q, k, v: (
            attended(*(one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)))
            .transpose(1, 2)
            .flatten(2)
        ),
    },
    lambda dtype: heads(dtype),
)
over(
    {
        "attention cudnn": lambda q, k, v: attended(q, k, v, SDPBackend.CUDNN_ATTENTION, is_causal=True),
        "attention flash": lambda q, k, v: attended(q, k, v, SDPBackend.FLASH_ATTENTION, is_causal=True),
        "attention odd length": lambda q, k, v: attended(q[:, :, :509], k[:, :, :509], v[:, :, :509]),
    },
    lambda dtype: heads(dtype),
    (bf16, f16),
)
over(
    {"attention grouped": lambda q, k, v: attended(q, k, v, enable_gqa=True, is_causal=True)},
    lambda dtype: heads(dtype, others=4),
)
over({"attention cross": lambda q, k, v: attended(q[:, :, :100], k, v)}, lambda dtype: heads(dtype))
# sequences and losses
case(
    "ctc",
    lambda: [floats(200, 16, 64), ids(63, 16, 30) + 1],
    lambda x, t: F.ctc_loss(
        x.log_softmax(-1), t, torch.full((16,), 200, device=gpu), torch.full((16,), 30, device=gpu)
    ),
)
case(
    "ctc cpu lengths",
    lambda: [floats(200, 16, 64), ids(63, 16, 30) + 1],
    lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (200,) * 16, (30,) * 16),
)
for dtype in (f32, bf16):
    case(
        f"clip_grad_norm {str(dtype)[6:]}",
        lambda dtype=dtype: [floats(1024, 1024, dtype=dtype) for _ in range(8)],
        lambda *w: torch.nn.utils.get_total_norm([one.detach() for one in w]),
    )
    case(
        f"foreach add {str(dtype)[6:]}",
        lambda dtype=dtype: [floats(1024, 1024, dtype=dtype, grad=False) for _ in range(8)],
        lambda *w: torch._foreach_add(w, 1.0),
    )
    case(
        f"weight_norm {str(dtype)[6:]}",
        lambda dtype=dtype: [floats(1024, 1024, dtype=dtype), floats(1024, 1, dtype=dtype)],
        lambda v, g: torch._weight_norm(v, g, 0),
    )
case(
    "spectral",
    lambda: [floats(1024, 1024), floats(1024, grad=False)],
    lambda w, u: w / (u @ (w @ F.normalize(w.T @ u, dim=0))),
)
case("sparse mm", lambda: [floats(4096, 256)], lambda x: torch.sparse.mm(torch.eye(4096, device=gpu).to_sparse(), x))
case("csr mm", lambda: [floats(4096, 256)], lambda x: torch.eye(4096, device=gpu).to_sparse_csr() @ x)
case("vmap mm", lambda: [floats(64, 256, 256)], lambda x: torch.vmap(lambda one: one @ one)(x))
case(
    "autocast linear",
    lambda: [floats(4096, 1024), floats(1024, 1024)],
    lambda x, w: torch.autocast("cuda", bf16)(lambda: F.linear(x, w))(),
)
case(
    "autocast layer_norm",
    lambda: [floats(4096, 1024)],
    lambda x: torch.autocast("cuda", bf16)(lambda: F.layer_norm(x, (1024,)))(),
)
case(
    "autocast softmax",
    lambda: [floats(4096, 1024, dtype=bf16)],
    lambda x: torch.autocast("cuda", bf16)(lambda: x.softmax(-1))(),
)
case(
    "autocast grid_sample",
    lambda: [floats(*PICTURE, dtype=bf16), floats(16, 96, 96, 2)],
    lambda x, g: torch.autocast("cuda", bf16)(lambda: F.grid_sample(x, g.tanh(), align_corners=False))(),
)
case(
    "autocast cat",
    lambda: [floats(4096, 1024, dtype=bf16), floats(4096, 1024)],
    lambda x, y: torch.autocast("cuda", bf16)(lambda: torch.cat([x, y]))(),
)
