"""Attention, positions, caches, decoding."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.held_back.case import Case, function, given, program, sized


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


@function(lambda c: (torch.randn(2, 3, sized(c, 6, 4), 8), torch.randn(2, 3, sized(c, 6, 4), 8)))
def rotary_by_halves(q, k, base=10000.0):
    positions = torch.arange(q.shape[2], device=q.device, dtype=q.dtype)
    rates = base ** (-torch.arange(0, q.shape[-1], 2, device=q.device, dtype=q.dtype) / q.shape[-1])
    angles = torch.outer(positions, rates)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


@function(lambda c: (torch.randn(2, sized(c, 6, 4), 3, 8, requires_grad=c % 2 == 0),))
def rotary_by_complex_numbers(x, theta=100.0):
    freqs = 1.0 / (theta ** (torch.arange(0, 8, 2, device=x.device).float() / 8))
    angles = torch.outer(torch.arange(x.shape[1], device=x.device), freqs)
    turned = (
        torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.view_as_real(turned).flatten(-2)


@function(lambda c: (torch.randn(2, 5, 8),))
def rotary_written_into_halves(x):
    out = torch.empty_like(x)
    angle = torch.arange(x.shape[1], device=x.device)[:, None] * 0.3
    out[..., ::2] = x[..., ::2] * angle.cos() - x[..., 1::2] * angle.sin()
    out[..., 1::2] = x[..., ::2] * angle.sin() + x[..., 1::2] * angle.cos()
    return out


@function(lambda c: (sized(c, 6, 9), 8))
def sinusoidal_table(length, dim):
    table = torch.zeros(length, dim)
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


@program
def multi_head_attention_module():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def attend(x, mask=None):
        out, weights = layer(x, x, x, key_padding_mask=mask, need_weights=True, average_attn_weights=False)
        return out - 1, weights

    def args(c):
        x = torch.randn(2, sized(c, 6, 4), 8)
        return (x,) if c < 5 else (x, torch.tensor([[False] * 3 + [True], [False] * 4]))

    return Case(attend, args)


@function(lambda c: [torch.randn(2, 2, sized(c, 5, 7), 8, requires_grad=True) for _ in range(3)])
def causal_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@function(lambda c: (*[torch.randn(2, 2, 5, 8) for _ in range(3)], torch.rand(2, 1, 5, 5) > 0.3))
def sdpa_with_a_boolean_mask(q, k, v, mask):
    mask = mask | torch.eye(5, dtype=torch.bool, device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.5)


@function(lambda c: [torch.randn(2, h, 5, 8) for h in (4, 2, 2)])
def grouped_query_attention(q, k, v):
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    weights = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
    return weights @ v, weights.sum(1)


@function(lambda c: [torch.randn(2, 3, sized(c, 5, 6), 4) for _ in range(3)])
def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    context = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
    below = 1 / (torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + 1e-6)
    return torch.einsum("bhnd,bhnde,bhn->bhne", q, context, below)


@function(lambda c: [torch.randn(1, 2, 8, 4) for _ in range(3)])
def sliding_window_attention(q, k, v, window=3):
    n = q.shape[-2]
    i = torch.arange(n, device=q.device)
    allowed = (i[:, None] >= i) & (i[:, None] - i < window)
    scores = (q @ k.mT).masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1) @ v


@function(lambda c: (torch.randn(2, 4, 6, 6),))
def alibi_bias(scores):
    heads, n = scores.shape[1], scores.shape[-1]
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)], device=scores.device)
    distance = torch.arange(n, device=scores.device) - torch.arange(n, device=scores.device)[:, None]
    return (scores + slopes[:, None, None] * distance).softmax(-1)


@program
def relative_positions_t5():
    bias = nn.Embedding(8, 2)

    def bucket(offset):
        sign = (offset > 0).long() * 4
        distance = offset.abs()
        far = 2 + (torch.log(distance.float().clamp(min=1) / 2) / math.log(8) * 2).long()
        return sign + torch.where(distance < 2, distance, far.clamp(max=3))

    def attend(q, k):
        n, m = q.shape[-2], k.shape[-2]
        offset = torch.arange(m, device=q.device)[None] - torch.arange(n, device=q.device)[:, None]
        return ((q @ k.mT) + bias(bucket(offset)).permute(2, 0, 1)).softmax(-1)

    return Case(attend, lambda c: (torch.randn(3, 2, sized(c), 4), torch.randn(3, 2, sized(c), 4)))


class Block(nn.Module):
    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.heads = heads

    def forward(self, x, cache=None, position=None):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0][:, :, position] = k
            cache[1][:, :, position] = v
            k, v = cache
            mask = torch.arange(k.shape[2], device=x.device) <= position.view(-1, 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, layers=2, vocabulary=13, dim=8):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, dim), nn.Embedding(16, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, caches=None, position=None):
        where = position if position is not None else torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(where)
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches is not None else None, position)
        return self.head(self.norm(x))


@program
def language_model_training():
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(tokens):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 13), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Case(
        step,
        lambda c: (
            torch.randint(
                13,
                (2, sized(c)),
            ),
        ),
    )


@program
def decoding_into_a_cache():
    model = Language().eval()
    caches = [(torch.zeros(2, 2, 12, 4), torch.zeros(2, 2, 12, 4)) for _ in range(2)]

    @torch.no_grad()
    def decode(token, position):
        return model(token, caches, position)[:, -1].argmax(-1, keepdim=True)

    return Case(decode, lambda c: (torch.randint(13, (2, 1)), torch.tensor([c])), state=[caches])


@program
def decoding_with_a_position_that_counts():
    model = Language(1).eval()
    cache = [(torch.zeros(2, 2, 12, 4), torch.zeros(2, 2, 12, 4))]
    position = torch.zeros(1, dtype=torch.long)

    @torch.inference_mode()
    def decode(token):
        logits = model(token, cache, position)
        position.add_(1)
        return logits[:, -1].softmax(-1)

    return Case(decode, lambda c: (torch.randint(13, (2, 1)),), {5: position.zero_}, state=[cache, position])


@program
def whole_greedy_loop():
    model = Language(1).eval()

    @torch.no_grad()
    def generate(tokens, count=3):
        for _ in range(count):
            following = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)
        return tokens

    return Case(generate, lambda c: given(torch.randint(13, (2, 4)), count=3 if c < 4 else 2))


@program
def cache_that_grows_by_cat():
    cache = {"k": torch.zeros(1, 2, 0, 4), "v": torch.zeros(1, 2, 0, 4)}

    def attend(q, k, v):
        cache["k"] = torch.cat([cache["k"], k], 2)
        cache["v"] = torch.cat([cache["v"], v], 2)
        return (q @ cache["k"].mT).softmax(-1) @ cache["v"]

    return Case(attend, lambda c: [torch.randn(1, 2, 1, 4) for _ in range(3)], state=[cache])


@program
def rolling_cache():
    cache = torch.zeros(2, 4, 3)

    def push(x):
        cache.copy_(torch.roll(cache, -1, 1))
        cache[:, -1] = x
        return cache.mean(1) - x

    return Case(push, lambda c: (torch.randn(2, 3),), {5: cache.zero_}, state=[cache])


@function(lambda c: (torch.randn(3, 11), 0.8 if c < 4 else 1.3))
def sampled_token(logits, temperature, top_k=4):
    scores = logits / temperature
    worst = scores.topk(top_k).values[:, -1:]
    probs = scores.masked_fill(scores < worst, -torch.inf).softmax(-1)
    return torch.multinomial(probs, 1)


@function(lambda c: (torch.randn(3, 11),))
def nucleus_filter(logits, p=0.7):
    ordered, index = logits.sort(descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    remove = mass - ordered.softmax(-1) > p
    return logits.masked_fill(remove.scatter(1, index, remove), float("-inf"))


@function(lambda c: (torch.randn(2, 7), torch.randint(7, (2, 4))))
def repetition_penalty(logits, seen, penalty=1.3):
    picked = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(picked < 0, picked * penalty, picked / penalty))


@function(lambda c: (torch.randn(2, 3), torch.randn(2, 3, 7)))
def beam_search_step(scores, logits):
    total = scores[..., None] + logits.log_softmax(-1)
    best, flat = total.flatten(1).topk(3)
    return best, flat // 7, flat % 7


@function(lambda c: (torch.randint(0, 5, (2, 6)),))
def padding_and_causal_mask(tokens):
    n = tokens.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
    return (causal & (tokens != 0)[:, None]).unsqueeze(1)


@program
def transformer_encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
    return Case(layer, lambda c: (torch.randn(2, sized(c, 5, 3), 8),), {3: layer.eval, 6: layer.train}, calls=9)


@program
def transformer_decoder():
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 2)

    def decode(x, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return decoder(x, memory, tgt_mask=mask)

    return Case(decode, lambda c: (torch.randn(2, sized(c, 5, 3), 8), torch.randn(2, 4, 8)))


@program
def encoder_with_padding_in_inference():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()

    @torch.no_grad()
    def encode(x, lengths):
        mask = torch.arange(x.shape[1], device=x.device)[None] >= lengths[:, None]
        return encoder(x, src_key_padding_mask=mask)

    return Case(encode, lambda c: (torch.randn(2, 5, 8), torch.tensor([5, 3])))


@program
def mixture_of_experts_dense():
    gate, experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def route(x):
        weights, chosen = gate(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        stacked = torch.stack([e(x) for e in experts], 1)
        picked = stacked.gather(1, chosen[..., None].expand(-1, -1, 6))
        usage = F.one_hot(chosen, 4).float().mean((0, 1))
        return (weights[..., None] * picked).sum(1), usage

    return Case(route, lambda c: (torch.randn(sized(c), 6),))


@program
def mixture_of_experts_by_index():
    gate, experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def route(x):
        chosen = gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows = torch.where(chosen == number)[0]
            out[rows] = expert(x[rows])
        return out

    return Case(route, lambda c: (torch.randn(8, 6),))


@program
def lora_adapter():
    base = nn.Linear(6, 5).requires_grad_(False)
    a, b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(5, 2))
    optimizer = torch.optim.AdamW([a, b], lr=0.1)
    config = {"alpha": 4.0}

    def step(x, y):
        out = base(x) + (x @ a.t() @ b.t()) * (config["alpha"] / 2)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, lambda c: (torch.randn(8, 6), torch.randn(8, 5)), {4: lambda: config.update(alpha=8.0)})


@program
def lora_merged_between_calls():
    base = nn.Linear(6, 5)
    a, b = torch.randn(2, 6), torch.randn(5, 2)

    def merge():
        with torch.no_grad():
            base.weight += b @ a

    return Case(
        lambda x: base(x) - 1, lambda c: (torch.randn(3, 6),), {3: merge, 5: lambda: base.requires_grad_(False)}
    )


@function(lambda c: (torch.randn(2, 4, 6), torch.randn(2, 4, 6)), rounds=True)
def cosine_retrieval(queries, keys):
    scores = F.cosine_similarity(queries[:, :, None], keys[:, None], dim=-1)
    return scores.max(-1), scores.argsort(dim=-1, descending=True, stable=True)


@function(lambda c: (torch.randint(0, 9, (2, sized(c))), torch.randn(9, 4)))
def token_shift(tokens, table):
    x = F.embedding(tokens, table)
    shifted = F.pad(x, (0, 0, 1, -1))
    return x * 0.6 - shifted * 0.4


@program
def state_space_scan():
    a, b, c_ = torch.rand(4) * 0.9, torch.randn(4), torch.randn(4)

    def scan(x):
        h, out = torch.zeros(x.shape[0], 4, device=x.device), []
        for t in range(x.shape[1]):
            h = a * h + b * x[:, t, None]
            out.append((h * c_).sum(-1))
        return torch.stack(out, 1), h

    return Case(scan, lambda c: (torch.randn(3, sized(c, 6, 4), requires_grad=True),))


@program
def retention_state_in_place():
    state = torch.zeros(2, 4, 4)

    def retain(q, k, v, gamma=0.9):
        state.mul_(gamma).add_(k.unsqueeze(-1) * v.unsqueeze(-2))
        return torch.einsum("bd,bde->be", q, state)

    return Case(retain, lambda c: [torch.randn(2, 4) for _ in range(3)], {4: state.zero_}, state=[state])


@program
def speculative_acceptance():
    def accept(draft, target, tokens, noise):
        p = target.softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        q = draft.softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        kept = (noise < (p / q).clamp(max=1)).long().cumprod(-1)
        residual = (target.softmax(-1) - draft.softmax(-1)).clamp(min=0)
        return kept.sum(-1), residual / residual.sum(-1, keepdim=True).clamp(min=1e-9)

    return Case(
        accept,
        lambda c: (torch.randn(2, 3, 5), torch.randn(2, 3, 5), torch.randint(5, (2, 3)), torch.rand(2, 3)),
    )


@program
def paged_cache():
    pages = torch.zeros(6, 2, 4)

    def write_and_read(x, table, slot):
        pages.view(-1, 4).index_copy_(0, slot, x)
        return pages[table].flatten(1, 2).mean(1) - x

    return Case(
        write_and_read,
        lambda c: (torch.randn(2, 4), torch.tensor([[0, 3], [5, 1]]), torch.tensor([c, 11 - c])),
        state=[pages],
    )


@function(lambda c: (torch.randn(3, 7), torch.full((3,), c)))
def stop_mask(logits, step):
    done = (logits.argmax(-1) == 2) | (step >= 4)
    return torch.where(
        done[:, None], torch.full_like(logits, -1e9).index_fill(1, torch.tensor([2], device=logits.device), 0), logits
    )
