"""One small program per family of operations: a function of tensors, and tensors to call it with.

Every tensor that the function reads is an argument, so that every one of them can be moved. Backward families take the
gradients of their results as further arguments and return the gradients of their floating-point ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Function = Callable[..., Sequence[Tensor]]
Made = tuple[Function, list[Tensor]]

FAMILIES: dict[str, Family] = {}


@dataclass(frozen=True, slots=True)
class Family:
    """A family: `make` builds its function and tensors on the GPU. `has_backward`: its gradients are a program too."""

    name: str
    make: Callable[[], Made]
    has_backward: bool


def family(*, backward: bool = False) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Note a function that makes a family, by its name."""

    def note(make: Callable[[], Made]) -> Callable[[], Made]:
        name = make.__name__
        FAMILIES[name] = Family(name, make, backward)
        return make

    return note


def programs() -> dict[str, Callable[[], Made]]:
    """Every program by name: each family, and its backward where it has one."""
    found: dict[str, Callable[[], Made]] = {}
    for name, each in FAMILIES.items():
        found[name] = each.make
        if each.has_backward:
            found[f"{name}, backward"] = partial(backward_of, each.make)
    return found


def backward_of(make: Callable[[], Made]) -> Made:
    """The program that also computes the gradients of a family's floating-point arguments.

    A function says by its attribute `constant` which arguments have none (statistics that it updates).
    """
    function, inputs = make()
    constant = getattr(function, "constant", frozenset())
    is_diff = [tensor.is_floating_point() and index not in constant for index, tensor in enumerate(inputs)]
    results = [result for result in function(*inputs) if result.is_floating_point()]
    grads = [torch.randn_like(result) for result in results]

    def forward_and_backward(*tensors: Tensor) -> Sequence[Tensor]:
        given, incoming = tensors[: len(inputs)], tensors[len(inputs) :]
        leaves = [tensor.detach().requires_grad_(diff) for tensor, diff in zip(given, is_diff, strict=True)]
        outs = [out for out in function(*leaves) if out.is_floating_point()]
        wanted = [leaf for leaf, diff in zip(leaves, is_diff, strict=True) if diff]
        found = torch.autograd.grad(outs, wanted, list(incoming), allow_unused=True)
        return [*(out.detach() for out in outs), *(grad for grad in found if grad is not None)]

    return forward_and_backward, [*inputs, *grads]


def rand(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Normal numbers on the GPU."""
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def integers(high: int, *shape: int) -> Tensor:
    """Integers on the GPU."""
    return torch.randint(high, shape, device="cuda")


def of_module(module: nn.Module, *inputs: Tensor) -> Made:
    """A module as a function of its inputs, parameters and buffers."""
    module = module.cuda()
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(state)
    first_buffer = len(inputs) + len(dict(module.named_parameters()))

    def function(*tensors: Tensor) -> Sequence[Tensor]:
        given, values = tensors[: len(inputs)], tensors[len(inputs) :]
        out = functional_call(module, dict(zip(names, values, strict=True)), given)
        return [out] if isinstance(out, Tensor) else _flat(out)

    function.constant = frozenset(range(first_buffer, len(inputs) + len(state)))  # type: ignore[attr-defined]
    return function, [*inputs, *(value.detach() for value in state.values())]


def _flat(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, (tuple, list)) else []


def mlp(dtype: torch.dtype, *, width: int = 256, layers: int = 4) -> nn.Module:
    """Linear layers with GELU between them."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*parts).to(dtype)


@family(backward=True)
def mlp_bf16() -> Made:
    return of_module(mlp(torch.bfloat16), rand(32, 256, dtype=torch.bfloat16))


@family(backward=True)
def mlp_tf32() -> Made:
    function, inputs = of_module(mlp(torch.float32), rand(32, 256))

    def with_tf32(*tensors: Tensor) -> Sequence[Tensor]:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return function(*tensors)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return with_tf32, inputs


@family(backward=True)
def mlp_fp32() -> Made:
    return of_module(mlp(torch.float32), rand(32, 256))


@family(backward=True)
def linear_large_bf16() -> Made:
    x, w, b = (rand(*shape, dtype=torch.bfloat16, scale=0.05) for shape in ((2048, 1024), (4096, 1024), (4096,)))
    return lambda x, w, b: [F.linear(x, w, b)], [x, w, b]


@family(backward=True)
def transformer_block() -> Made:
    layer = nn.TransformerEncoderLayer(256, 8, 512, dropout=0.0, batch_first=True, dtype=torch.bfloat16)
    return of_module(layer, rand(4, 64, 256, dtype=torch.bfloat16))


@family(backward=True)
def convolution_fp32() -> Made:
    return of_module(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3)), rand(4, 3, 32, 32))


@family(backward=True)
def convolution_fp16_channels_last() -> Made:
    layers = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3)).half()
    layers = layers.to(memory_format=torch.channels_last)
    x = rand(4, 16, 32, 32, dtype=torch.float16).to(memory_format=torch.channels_last)
    return of_module(layers, x)


@family(backward=True)
def convolution_depthwise() -> Made:
    return of_module(nn.Conv2d(32, 32, 3, groups=32, padding=1), rand(4, 32, 16, 16))


@family(backward=True)
def convolution_transposed() -> Made:
    return of_module(nn.ConvTranspose2d(16, 8, 4, stride=2), rand(4, 16, 16, 16))


@family(backward=True)
def convolution_1d_and_3d() -> Made:
    one, three = nn.Conv1d(8, 8, 3).cuda(), nn.Conv3d(4, 4, 3).cuda()
    weights = [value.detach() for layer in (one, three) for value in (layer.weight, layer.bias)]
    return (
        lambda x, y, a, b, c, d: [F.conv1d(x, a, b), F.conv3d(y, c, d)],
        [rand(2, 8, 64), rand(2, 4, 8, 8, 8), *weights],
    )


def attention(backend: SDPBackend, *, is_causal: bool = True) -> Made:
    """Scaled dot product attention by one backend."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
        with sdpa_kernel(backend):
            return [F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)]

    return function, [rand(2, 8, 128, 64, dtype=torch.bfloat16) for _ in range(3)]


@family(backward=True)
def attention_flash() -> Made:
    return attention(SDPBackend.FLASH_ATTENTION)


@family(backward=True)
def attention_memory_efficient() -> Made:
    return attention(SDPBackend.EFFICIENT_ATTENTION)


@family(backward=True)
def attention_cudnn() -> Made:
    return attention(SDPBackend.CUDNN_ATTENTION)


@family(backward=True)
def attention_math() -> Made:
    return attention(SDPBackend.MATH, is_causal=False)


@family(backward=True)
def embedding() -> Made:
    ids = integers(1000, 8, 32)
    return lambda w, ids: [F.embedding(ids, w)], [rand(1000, 64), ids]


@family(backward=True)
def embedding_bag() -> Made:
    return lambda w, ids: [F.embedding_bag(ids, w, mode="sum")], [rand(1000, 64), integers(1000, 8, 32)]


@family(backward=True)
def top_k() -> Made:
    return lambda x: list(torch.topk(x, 5)), [rand(16, 1000)]


@family(backward=True)
def sort() -> Made:
    return lambda x: list(torch.sort(x)), [rand(16, 1000)]


@family()
def sort_large() -> Made:
    return lambda x: list(torch.sort(x)), [rand(1 << 20)]


@family(backward=True)
def cumsum() -> Made:
    return lambda x: [torch.cumsum(x, 1), torch.cumsum(x.flatten(), 0)], [rand(16, 1000)]


@family()
def argmax_and_multinomial() -> Made:
    return lambda x: [x.argmax(1), torch.multinomial(x.softmax(1), 4)], [rand(16, 1000)]


@family()
def index_copy_into_cache() -> Made:
    def function(cache: Tensor, at: Tensor, x: Tensor) -> Sequence[Tensor]:
        cache.index_copy_(1, at, x)
        return [cache.sum(1)]

    return function, [rand(4, 128, 64), torch.tensor([7], device="cuda"), rand(4, 1, 64)]


@family(backward=True)
def reductions() -> Made:
    return (
        lambda x: [x.sum(), x.mean(1), x.var(0), x.amax(1), x.norm(), x.std(), torch.logsumexp(x, 1)],
        [rand(64, 300)],
    )


@family()
def reduction_large() -> Made:
    return lambda x: [x.sum(), x.amax(), x.argmax()], [rand(1 << 22)]


@family(backward=True)
def einsum() -> Made:
    return lambda a, b: [torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij->bj", a)], [
        rand(4, 32, 64),
        rand(4, 64, 16),
    ]


@family(backward=True)
def bmm() -> Made:
    return lambda a, b, c: [torch.bmm(a, b), torch.baddbmm(c, a, b)], [
        rand(8, 32, 64),
        rand(8, 64, 32),
        rand(8, 32, 32),
    ]


def recurrent(module: nn.Module, x: Tensor) -> Made:
    """A recurrent module as a function of its input; its weights are one piece of memory that stays where it is."""
    module = module.cuda()
    return lambda x: _flat(module(x)), [x]


@family(backward=True)
def lstm() -> Made:
    return recurrent(nn.LSTM(32, 64, num_layers=2, batch_first=True), rand(4, 16, 32))


@family(backward=True)
def gru() -> Made:
    return recurrent(nn.GRU(32, 64, batch_first=True), rand(4, 16, 32))


@family(backward=True)
def dropout() -> Made:
    return lambda x: [F.dropout(x, 0.3, training=True)], [rand(64, 256)]


@family()
def random_numbers() -> Made:
    return lambda x: [
        torch.rand_like(x),
        torch.randn_like(x),
        torch.bernoulli(x.sigmoid()),
        x + torch.rand(256, device="cuda"),
    ], [rand(64, 256)]


@family(backward=True)
def foreach_add_40() -> Made:
    def function(*tensors: Tensor) -> Sequence[Tensor]:
        return torch._foreach_add(tensors[:20], tensors[20:])

    return function, [rand(16 + index % 20 % 7, 8) for index in range(40)]


@family()
def foreach_add_200() -> Made:
    def function(*tensors: Tensor) -> Sequence[Tensor]:
        torch._foreach_add_(tensors[:100], tensors[100:], alpha=0.5)
        return [tensors[0] * 2]

    return function, [rand(16, 8) for _ in range(200)]


@family(backward=True)
def cat_of_slices() -> Made:
    return (
        lambda a, b: [torch.cat([a[:, 3:9], b[:, ::2], a[:, :1]], 1), torch.stack([a[0, :8], b[0, :8]])],
        [rand(16, 32), rand(16, 32)],
    )


@family(backward=True)
def fft() -> Made:
    return lambda x: [torch.fft.rfft(x).abs(), torch.fft.fft2(x).abs(), torch.fft.irfft(torch.fft.rfft(x))], [
        rand(16, 128)
    ]


@family()
def stft() -> Made:
    return lambda x, w: [torch.stft(x, 128, window=w, return_complex=True).abs()], [
        rand(2, 4096),
        torch.hann_window(128, device="cuda"),
    ]


@family(backward=True)
def scatter_add() -> Made:
    return lambda x, at, y: [x.scatter_add(1, at, y)], [rand(16, 64), integers(64, 16, 32), rand(16, 32)]


@family(backward=True)
def scatter_reduce() -> Made:
    return lambda x, at, y: [x.scatter_reduce(1, at, y, "amax")], [rand(16, 64), integers(64, 16, 32), rand(16, 32)]


@family(backward=True)
def gather() -> Made:
    return lambda x, at: [x.gather(1, at), x.index_select(0, at[0] % 16)], [rand(16, 64), integers(64, 16, 32)]


@family(backward=True)
def index_put() -> Made:
    return (
        lambda x, at, y: [x.index_put((at,), y), x.index_put((at,), y, accumulate=True)],
        [rand(64, 16), torch.randperm(64, device="cuda")[:32], rand(32, 16)],
    )


@family(backward=True)
def advanced_indexing() -> Made:
    return lambda x, i, j: [x[i, j], x[:, i[:8]]], [rand(64, 64), integers(64, 32), integers(64, 32)]


@family(backward=True)
def layer_norm() -> Made:
    return of_module(nn.LayerNorm(256), rand(32, 256))


@family(backward=True)
def rms_norm() -> Made:
    return of_module(nn.RMSNorm(256), rand(32, 256))


@family(backward=True)
def batch_norm() -> Made:
    return of_module(nn.BatchNorm2d(32), rand(4, 32, 16, 16))


@family(backward=True)
def batch_norm_channels_last_fp16() -> Made:
    x = rand(4, 32, 16, 16, dtype=torch.float16).to(memory_format=torch.channels_last)
    return of_module(nn.BatchNorm2d(32).half(), x)


@family(backward=True)
def group_norm() -> Made:
    return of_module(nn.GroupNorm(4, 32), rand(4, 32, 16, 16))


@family(backward=True)
def softmax() -> Made:
    return lambda x: [x.softmax(1), x.log_softmax(0)], [rand(32, 500)]


@family(backward=True)
def cross_entropy() -> Made:
    return lambda x, y: [F.cross_entropy(x, y), F.nll_loss(x.log_softmax(1), y)], [rand(32, 100), integers(100, 32)]


@family(backward=True)
def losses() -> Made:
    return (
        lambda x, y: [F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.binary_cross_entropy_with_logits(x, y.sigmoid())],
        [rand(32, 100), rand(32, 100)],
    )


@family(backward=True)
def pooling() -> Made:
    return (
        lambda x: [F.max_pool2d(x, 2), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 4), F.adaptive_max_pool2d(x, 3)],
        [rand(2, 8, 17, 17)],
    )


@family(backward=True)
def interpolate() -> Made:
    return (
        lambda x: [
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, size=20, mode="bilinear"),
            F.interpolate(x, size=9, mode="bicubic"),
        ],
        [rand(2, 8, 12, 12)],
    )


@family(backward=True)
def grid_sample() -> Made:
    return lambda x, g: [F.grid_sample(x, g.tanh(), align_corners=False)], [rand(2, 3, 16, 16), rand(2, 8, 8, 2)]


@family(backward=True)
def padding_and_rolling() -> Made:
    return (
        lambda x: [F.pad(x, (1, 2)), F.pad(x, (2, 2), mode="reflect"), x.roll(3, 1), x.flip(1), x.tril()],
        [rand(8, 8, 24)],
    )


@family(backward=True)
def pointwise() -> Made:
    def function(x: Tensor, y: Tensor, mask: Tensor) -> Sequence[Tensor]:
        return [
            x * y + 1,
            x.sin() / (y * y + 1),
            torch.where(mask > 0, x, y),
            x.masked_fill(mask > 0, 0.5),
            x.clamp(-1, 1),
            x.lerp(y, 0.3),
        ]

    return function, [rand(100, 37), rand(100, 37), integers(2, 100, 37)]


@family()
def copies_and_fills() -> Made:
    def function(x: Tensor, y: Tensor) -> Sequence[Tensor]:
        zeros, ones = torch.zeros(64, 64, device="cuda"), torch.ones(50, device="cuda")
        y.copy_(x)
        return [
            x.clone(),
            x[:, ::2].clone(),
            x.t().contiguous(),
            zeros + x,
            ones,
            torch.full_like(x, 3.0),
            torch.zeros_like(x),
            x.half(),
            torch.arange(9, device="cuda"),
        ]

    return function, [rand(64, 64), rand(64, 64)]


@family()
def strided_views() -> Made:
    base = rand(64, 64)
    return lambda x, y: [x + y, (x @ y.t())], [base[8:24, 4:36], rand(100, 32)[10:26]]


@family(backward=True)
def linear_algebra() -> Made:
    def function(x: Tensor, b: Tensor) -> Sequence[Tensor]:
        spd = x @ x.mT + 8 * torch.eye(16, device="cuda")
        factor = torch.linalg.cholesky_ex(spd)[0]
        return [factor, torch.linalg.solve_triangular(factor, b, upper=False)]

    return function, [rand(4, 16, 16), rand(4, 16, 3)]


@family()
def linear_algebra_lu() -> Made:
    return lambda x: [torch.linalg.lu_factor_ex(x)[0], torch.linalg.inv_ex(x)[0]], [rand(4, 16, 16)]


@family()
def int8_matmul() -> Made:
    a, b = (torch.randint(-8, 8, (64, 64), device="cuda", dtype=torch.int8) for _ in range(2))
    return lambda a, b: [torch._int_mm(a, b)], [a, b]


@family()
def fp8_matmul() -> Made:
    a, b = rand(64, 64).to(torch.float8_e4m3fn), rand(64, 64).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    return lambda a, b, s, t: [torch._scaled_mm(a, b, s, t, out_dtype=torch.bfloat16)], [a, b, one, one.clone()]


@family()
def grouped_matmul() -> Made:
    a, b = rand(128, 64, dtype=torch.bfloat16), rand(4, 64, 64, dtype=torch.bfloat16).transpose(1, 2)
    ends = torch.tensor([32, 64, 96, 128], device="cuda", dtype=torch.int32)
    return lambda a, b, ends: [torch._grouped_mm(a, b, offs=ends)], [a, b, ends]


@family()
def ctc_and_distance() -> Made:
    return lambda x, y: [torch.cdist(x, y), F.cosine_similarity(x, y[:32], dim=1), F.pairwise_distance(x, y[:32])], [
        rand(32, 64),
        rand(48, 64),
    ]


def compiled(module: nn.Module, *inputs: Tensor) -> Made:
    """A module compiled by Inductor, as a function of its inputs, parameters and buffers."""
    function, tensors = of_module(module, *inputs)
    torch._dynamo.reset()
    made = torch.compile(function)
    made.constant = function.constant  # type: ignore[attr-defined]
    return made, tensors


@family(backward=True)
def inductor_mlp() -> Made:
    return compiled(mlp(torch.bfloat16), rand(32, 256, dtype=torch.bfloat16))


class Block(nn.Module):
    """A decoder block as in GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, width: int = 128, blocks: int = 2, words: int = 300) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.t()


@family(backward=True)
def gpt() -> Made:
    return of_module(Gpt().bfloat16(), integers(300, 2, 32))


@family(backward=True)
def inductor_gpt() -> Made:
    return compiled(Gpt().bfloat16(), integers(300, 2, 32))


@family(backward=True)
def inductor_convolution() -> Made:
    layers = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 3))
    return compiled(layers, rand(4, 3, 32, 32))


@family()
def inductor_reductions_and_random() -> Made:
    def function(x: Tensor) -> Sequence[Tensor]:
        return [F.dropout(x, 0.2, training=True), x.softmax(1), x.sum(0), torch.sort(x, 1)[0]]

    torch._dynamo.reset()
    return torch.compile(function), [rand(64, 300)]


def adam_w(*, fused: bool) -> Made:
    """A step of AdamW over ten parameters."""
    from torch.optim.adamw import adamw

    shapes = [(64, 32), (32,)] * 5
    step = [torch.tensor(3.0, device="cuda") for _ in shapes]
    count = len(shapes)

    def function(*tensors: Tensor) -> Sequence[Tensor]:
        params, grads, first, second, steps = (list(tensors[i * count : (i + 1) * count]) for i in range(5))
        with torch.no_grad():
            adamw(
                params, grads, first, second, [], steps, foreach=not fused, capturable=True, fused=fused, amsgrad=False,
                beta1=0.9, beta2=0.99, lr=0.01, weight_decay=0.01, eps=1e-8, maximize=False,
            )  # fmt: skip
        return [params[0] + 0]

    state = [[rand(*shape) for shape in shapes] for _ in range(2)] + [
        [rand(*shape).abs() for shape in shapes] for _ in range(2)
    ]
    return function, [*(tensor for group in state for tensor in group), *step]


@family()
def adamw_foreach() -> Made:
    return adam_w(fused=False)


@family()
def adamw_fused() -> Made:
    return adam_w(fused=True)


@family()
def sgd_foreach() -> Made:
    from torch.optim.sgd import sgd

    def function(*tensors: Tensor) -> Sequence[Tensor]:
        params, grads, momenta = (list(tensors[i * 6 : (i + 1) * 6]) for i in range(3))
        with torch.no_grad():
            sgd(
                params, grads, momenta, foreach=True, weight_decay=0.1, momentum=0.9, lr=0.01, dampening=0.0,
                nesterov=False, maximize=False,
            )  # fmt: skip
        return [params[0] + 0]

    return function, [rand(32, 16) for _ in range(18)]


@family()
def clip_grad_norm() -> Made:
    def function(*grads: Tensor) -> Sequence[Tensor]:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(list(grads), (1.0 / (norm + 1e-6)).clamp(max=1.0))
        return [norm]

    return function, [rand(32, 16 + index) for index in range(12)]
