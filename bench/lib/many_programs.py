"""Short trainings of widely used models, for bench/estimate/many_models.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Program = tuple[str, str, Callable[[], None]]
STEPS = 6

TORCHVISION = (
    "alexnet", "convnext_small", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_800mf", "resnet18", "resnet50",
    "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_16",
    "wide_resnet50_2", "deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large", "fasterrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssdlite320_mobilenet_v3_large",
    "keypointrcnn_resnet50_fpn", "r3d_18", "mc3_18", "r2plus1d_18", "mvit_v1_b", "swin3d_t", "s3d", "raft_small",
)  # fmt: skip
TIMM = (
    "beit_base_patch16_224", "cait_xxs24_224", "coat_tiny", "coatnet_0_224", "convit_tiny", "convmixer_768_32",
    "convnextv2_tiny", "crossvit_tiny_240", "cspdarknet53", "deit3_small_patch16_224", "davit_tiny", "dla34",
    "dpn68", "edgenext_small", "efficientformer_l1", "efficientvit_b0", "eva02_tiny_patch14_224", "fastvit_t8",
    "focalnet_tiny_srf", "gcvit_tiny", "ghostnet_100", "hiera_tiny_224", "hrnet_w18", "inception_resnet_v2",
    "levit_128", "mambaout_tiny", "mixer_b16_224", "mobilenetv4_conv_small", "mobilevit_s", "mvitv2_tiny",
    "nfnet_f0", "nextvit_small", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "repvgg_a0", "res2net50_26w_4s",
    "resmlp_12_224", "rexnet_100", "sequencer2d_s", "tinynet_a", "tiny_vit_5m_224", "tnt_s_patch16_224",
    "twins_svt_small", "visformer_tiny", "volo_d1_224", "xception41", "xcit_tiny_12_p16_224",
)  # fmt: skip
CAUSAL = (
    "bloom", "codegen", "cohere", "deepseek_v3", "falcon", "gemma", "gemma2", "gpt2", "gpt_bigcode", "gpt_neo",
    "gpt_neox", "gptj", "granite", "granitemoe", "llama", "mamba", "mamba2", "mistral", "mixtral", "mpt", "olmo",
    "olmo2", "olmoe", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rwkv", "stablelm",
    "starcoder2", "xglm",
)  # fmt: skip
MASKED = (
    "albert", "bert", "big_bird", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "fnet", "funnel", "layoutlm", "longformer", "mobilebert", "modernbert", "mpnet", "reformer", "roberta", "roformer",
    "squeezebert", "xlm-roberta", "yoso",
)  # fmt: skip
TRANSLATION = (
    "bart", "bigbird_pegasus", "blenderbot", "led", "longt5", "m2m_100", "marian", "mbart", "mt5", "nllb-moe",
    "pegasus", "prophetnet", "switch_transformers", "t5", "umt5",
)  # fmt: skip


def train(model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], optimizer: str = "AdamW") -> None:
    """Train a model on the GPU for a few steps."""
    model.to("cuda").train()
    chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        chosen.zero_grad()
        loss_of(model).backward()
        chosen.step()


def _sum(found: Any) -> torch.Tensor:
    """Return a loss of any output."""
    if isinstance(found, torch.Tensor):
        return found.float().pow(2).mean()
    values = found.values() if isinstance(found, dict) else found
    return sum((_sum(value) for value in values), torch.zeros((), device="cuda"))


def _boxes(count: int, masks: bool) -> list[dict[str, Any]]:
    corners = torch.tensor([[10.0, 20.0, 100.0, 120.0], [30.0, 30.0, 90.0, 200.0]])
    target: dict[str, Any] = {"boxes": corners, "labels": torch.tensor([1, 2])}
    if masks:
        target |= {"masks": torch.zeros(2, 256, 256, dtype=torch.uint8), "keypoints": torch.ones(2, 17, 3)}
    return [{name: value.to("cuda") for name, value in target.items()} for _ in range(count)]


def _torchvision(name: str) -> None:
    from torchvision import models

    parts = ("resnet50_fpn", "deeplab", "fcn", "lraspp", "ssd")
    weights = {"weights_backbone": None} if any(part in name for part in parts) else {}
    model = models.get_model(name, weights=None, **weights)
    if "rcnn" in name or "retinanet" in name or "fcos" in name or "ssd" in name:
        masks = "mask" in name or "keypoint" in name
        train(model, lambda m: _sum(m([torch.randn(3, 256, 256, device="cuda")] * 2, _boxes(2, masks))), "SGD")
    elif name in ("r3d_18", "mc3_18", "r2plus1d_18", "mvit_v1_b", "swin3d_t", "s3d"):
        train(model, lambda m: _sum(m(torch.randn(2, 3, 16, 224, 224, device="cuda"))))
    elif name.startswith("raft"):
        train(model, lambda m: _sum(m(*torch.randn(2, 1, 3, 128, 128, device="cuda").unbind(0))))
    else:
        size = 299 if name.startswith("inception") else 224
        train(model, lambda m: _sum(m(torch.randn(4, 3, size, size, device="cuda"))), "SGD")


def _timm(name: str) -> None:
    import timm

    model = timm.create_model(name, pretrained=False)
    size = model.default_cfg["input_size"]
    train(model, lambda m: _sum(m(torch.randn(4, *size, device="cuda"))))


def _text(name: str, head: str) -> None:
    import transformers

    config = transformers.AutoConfig.for_model(name)
    for field in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"):
        if isinstance(getattr(config, field, None), int):
            with_layers = 4 if name in ("switch_transformers", "nllb-moe") else 2
            try:
                setattr(config, field, min(getattr(config, field), with_layers))
            except (AttributeError, NotImplementedError):
                continue
    if isinstance(vars(config).get("layer_types"), list):
        config.layer_types = config.layer_types[:2]
    if getattr(config, "n_routed_experts", 0) and config.n_routed_experts > 32:
        config.n_routed_experts = 32
    if name == "gpt_neo":
        config.attention_types, config.attention_layers = [[["global", "local"], 1]], ["global", "local"]
    if name == "reformer":
        config.axial_pos_shape, config.attn_layers = (16, 8), ["local", "lsh"]
    if head == "Seq2SeqLM" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    if hasattr(config, "is_decoder") and head == "CausalLM":
        config.is_decoder = True
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config)
    words = min(int(config.vocab_size), 1000)
    ids = torch.randint(3, words, (2, 128))

    def loss_of(model: nn.Module) -> torch.Tensor:
        moved = ids.to("cuda")
        found: torch.Tensor = model(input_ids=moved, labels=moved).loss
        return found

    train(model, loss_of)


def _lstm(bidirectional: bool, projected: int, packed: bool) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5000, 128)
            self.layers = nn.LSTM(128, 256, 2, bidirectional=bidirectional, proj_size=projected, batch_first=True)
            self.out = nn.Linear((projected or 256) * (2 if bidirectional else 1), 20)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> Any:
            data: Any = self.words(ids)
            if packed:
                data = nn.utils.rnn.pack_padded_sequence(data, lengths, batch_first=True, enforce_sorted=False)
            found, _ = self.layers(data)
            if packed:
                found, _ = nn.utils.rnn.pad_packed_sequence(found, batch_first=True)
            return self.out(found)

    lengths = torch.tensor([30, 12, 25, 7])
    train(Tagger(), lambda m: _sum(m(torch.randint(5000, (4, 30)).to("cuda"), lengths)))


def _gan() -> None:
    made = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 3, 4, 4)
    )
    judge = nn.Sequential(nn.Conv2d(3, 64, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))
    made.to("cuda")
    judge.to("cuda")
    judge(torch.zeros(1, 3, 16, 16, device="cuda"))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (made, judge)]
    for _ in range(STEPS):
        fake = made(torch.randn(16, 64, 1, 1, device="cuda"))
        real = torch.randn(16, 3, 16, 16, device="cuda")
        for sign, optimizer in zip((1, -1), optimizers, strict=True):
            optimizer.zero_grad()
            (sign * (judge(fake.detach() if sign < 0 else fake).mean() - judge(real).mean())).backward()
            optimizer.step()


def _reinforce(continuous: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 4)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    state = torch.randn(64, 8)
    for _ in range(STEPS):
        scores = model(state.to("cuda"))
        if continuous:
            drawn = torch.distributions.Normal(scores, 1.0)
        else:
            drawn = torch.distributions.Categorical(logits=scores)
        action = drawn.sample()
        rewards = torch.tensor([float(value) for value in action.cpu().flatten().tolist()[:64]]).to("cuda")
        loss = -(drawn.log_prob(action).view(64, -1).sum(1) * rewards).mean() - drawn.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _dqn() -> None:
    online, target = (nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda") for _ in range(2))
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.RMSprop(online.parameters())
    for _ in range(STEPS):
        state, action = torch.randn(32, 8, device="cuda"), torch.randint(4, (32, 1), device="cuda")
        chosen = int(online(state[:1]).argmax(1).item())
        wanted = torch.rand(32, device="cuda") + 0.9 * target(state).max(1).values.detach() + chosen
        loss = F.smooth_l1_loss(online(state).gather(1, action).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _graph(layer: str) -> None:
    from torch_geometric import nn as graph

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if layer == "GINConv":
                self.first: Any = graph.GINConv(nn.Linear(64, 128))
            else:
                self.first = getattr(graph, layer)(64, 128)
            self.out = nn.Linear(128, 7)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
            return self.out(graph.global_mean_pool(self.first(nodes, edges).relu(), batch))

    edges = torch.randint(1000, (2, 5000))
    train(Net(), lambda m: _sum(m(torch.randn(1000, 64, device="cuda"), edges.cuda(), torch.arange(1000).cuda() // 50)))


def _diffusers(kind: str) -> None:
    import diffusers

    if kind == "UNet2DModel":
        model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(64, 128), layers_per_block=1,
                                      down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                      up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
        train(model, lambda m: _sum(m(torch.randn(2, 3, 32, 32, device="cuda"), torch.tensor([3, 7]).cuda()).sample))
    elif kind == "AutoencoderKL":
        train(diffusers.AutoencoderKL(), lambda m: _sum(m(torch.randn(2, 3, 64, 64, device="cuda")).sample))
    else:
        model = diffusers.DiTTransformer2DModel(num_layers=2, sample_size=16)
        times = torch.tensor([3, 7])
        train(model, lambda m: _sum(m(torch.randn(2, 4, 16, 16, device="cuda"), times.cuda(), times.cuda()).sample))


def _lora() -> None:
    import peft
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("gpt2", n_layer=2))
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["c_attn"]))
    ids = torch.randint(1000, (2, 64))
    train(model, lambda m: m(input_ids=ids.cuda(), labels=ids.cuda()).loss)


def _lightning() -> None:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

        def training_step(self, batch: Any, _place: int) -> torch.Tensor:
            return F.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    data = TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_steps": STEPS}
    lightning.Trainer(accelerator="gpu", devices=1, **options).fit(Classifier(), DataLoader(data, 32))


def _trainer(**how: Any) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("gpt2", n_layer=2))
    ids = torch.randint(1000, (64, 128))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=4, report_to=[], save_strategy="no", **how
    )
    transformers.Trainer(model, arguments, train_dataset=rows).train()


def _accelerated() -> None:
    import accelerate

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    helper = accelerate.Accelerator(mixed_precision="bf16")
    loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.randint(10, (512,))), 32)
    model, optimizer, loader = helper.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for data, labels in loader:
        optimizer.zero_grad()
        helper.backward(F.cross_entropy(model(data), labels))
        optimizer.step()


def _custom_operator() -> None:
    @torch.library.custom_op("many::scaled", mutates_args=())
    def scaled(data: torch.Tensor, factor: float) -> torch.Tensor:
        return data * factor

    scaled.register_fake(lambda data, factor: torch.empty_like(data))
    scaled.register_autograd(lambda context, grad: (grad * 2.0, None))
    train(nn.Linear(64, 64), lambda model: _sum(scaled(model(torch.randn(32, 64, device="cuda")), 2.0)))


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(data)
        return data * data

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * context.saved_tensors[0] * grad


def _custom_function() -> None:
    train(nn.Linear(64, 64), lambda model: _sum(_Squared.apply(model(torch.randn(32, 64, device="cuda")))))


def programs() -> Iterator[Program]:
    """Yield library, name and program."""
    for name in TORCHVISION:
        yield "torchvision", name, partial(_torchvision, name)
    for name in TIMM:
        yield "timm", name, partial(_timm, name)
    for head, names in (("CausalLM", CAUSAL), ("MaskedLM", MASKED), ("Seq2SeqLM", TRANSLATION)):
        for name in names:
            yield "transformers", name, partial(_text, name, head)
    for both, projected, packed in ((False, 0, False), (True, 0, True), (False, 64, False), (True, 32, True)):
        yield "torch", f"lstm-{both}-{projected}-{packed}", partial(_lstm, both, projected, packed)
    yield "torch", "gan", _gan
    yield "torch", "reinforce-discrete", partial(_reinforce, False)
    yield "torch", "reinforce-continuous", partial(_reinforce, True)
    yield "torch", "dqn", _dqn
    for layer in ("GCNConv", "GATConv", "SAGEConv", "GINConv", "GraphConv", "TransformerConv"):
        yield "torch_geometric", layer, partial(_graph, layer)
    for kind in ("UNet2DModel", "AutoencoderKL", "DiTTransformer2DModel"):
        yield "diffusers", kind, partial(_diffusers, kind)
    yield "peft", "lora-gpt2", _lora
    yield "lightning", "trainer", _lightning
    yield "transformers", "trainer-float32", _trainer
    yield "transformers", "trainer-bfloat16-checkpointed", partial(_trainer, bf16=True, gradient_checkpointing=True)
    yield "accelerate", "bfloat16", _accelerated
    yield "torch", "custom-operator", _custom_operator
    yield "torch", "custom-function", _custom_function
