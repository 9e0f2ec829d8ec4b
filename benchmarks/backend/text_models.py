"""Transformers of text and sound, from the configurations that were published with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.backend.model import Feed, Model, Size, of_logits, pick

_TINY_WORDS = 96


def _tokens(words: int, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    return torch.randint(words, shape, device=device)


def _feed(words: int, shape: tuple[int, int], *, masked: bool = False) -> Callable[[Size, torch.device], Feed]:
    def feed(size: Size, device: torch.device) -> Feed:
        count, at = pick(size, _TINY_WORDS, words), pick(size, (2, 8), shape)
        inputs = {"input_ids": _tokens(count, at, device)}
        if masked:  # the second half of the batch is shorter
            lengths = torch.full((at[0], 1), at[1], device=device)
            lengths[at[0] // 2 :] = at[1] * 3 // 4
            inputs["attention_mask"] = (torch.arange(at[1], device=device) < lengths).long()
        return Feed(inputs, _tokens(count, at, device))

    return feed


def _bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    tiny = {
        "vocab_size": _TINY_WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    made: nn.Module = BertForMaskedLM(BertConfig(**no_dropout, **pick(size, tiny, {})))
    return made


def gpt2_of(size: Size, dropout: float) -> nn.Module:
    """GPT-2 small with dropout of a probability."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = {"vocab_size": _TINY_WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    made: nn.Module = GPT2LMHeadModel(GPT2Config(use_cache=False, **rates, **pick(size, tiny, {})))
    return made


def _llama(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = {
        "vocab_size": _TINY_WORDS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    published = {  # SmolLM2-135M
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    }
    made: nn.Module = LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, use_cache=False, **pick(size, tiny, published))
    )
    return made


def _t5(size: Size) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    tiny: dict[str, Any] = {
        "vocab_size": _TINY_WORDS,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
    }
    made: nn.Module = T5ForConditionalGeneration(T5Config(dropout_rate=0.0, use_cache=False, **pick(size, tiny, {})))
    return made


def _t5_feed(size: Size, device: torch.device) -> Feed:
    words, read, written = pick(size, (_TINY_WORDS, (2, 8), (2, 6)), (32128, (8, 128), (8, 64)))
    inputs = {"input_ids": _tokens(words, read, device), "decoder_input_ids": _tokens(words, written, device)}
    return Feed(inputs, _tokens(words, written, device))


def _whisper(size: Size) -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tiny = dict(
        vocab_size=_TINY_WORDS,
        num_mel_bins=8,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        suppress_tokens=None,
        **layers,
    )

    class Whisper(WhisperForConditionalGeneration):  # type: ignore[misc, no-any-unimported]
        """Stays in eval mode: some versions draw a number on the host for each layer, to skip it with probability 0."""

        def train(self, mode: bool = True) -> nn.Module:
            trained: nn.Module = super().train(False)
            return trained

    made: nn.Module = Whisper(WhisperConfig(use_cache=False, **pick(size, tiny, {})))
    return made


def _whisper_feed(size: Size, device: torch.device) -> Feed:
    sound, words, written = pick(size, ((2, 8, 32), _TINY_WORDS, (2, 6)), ((2, 80, 3000), 51865, (2, 32)))
    inputs = {
        "input_features": torch.randn(sound, device=device),
        "decoder_input_ids": _tokens(words, written, device),
    }
    return Feed(inputs, _tokens(words, written, device))


def _clip(size: Size) -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {
        "vocab_size": _TINY_WORDS,
        "max_position_embeddings": 16,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    tiny = {
        "text_config": {**part, **words},
        "vision_config": {**part, "image_size": 32, "patch_size": 8},
        "projection_dim": 16,
    }
    made: nn.Module = CLIPModel(CLIPConfig(**pick(size, tiny, {})))
    return made


def _clip_feed(size: Size, device: torch.device) -> Feed:
    count, pixels, words, length = pick(size, (3, 32, _TINY_WORDS, 8), (8, 224, 49408, 77))
    inputs = {
        "input_ids": _tokens(words, (count, length), device),
        "pixel_values": torch.randn(count, 3, pixels, pixels, device=device),
    }
    return Feed(inputs, torch.arange(count, device=device))


def _of_pairs(result: Any, target: torch.Tensor) -> torch.Tensor:
    by_text = nn.functional.cross_entropy(result.logits_per_text, target)
    return (by_text + nn.functional.cross_entropy(result.logits_per_image, target)) / 2


TEXT_MODELS = (
    Model("bert", "encoder: BERT-base", "transformers", _bert, _feed(30522, (8, 128), masked=True), of_logits),
    Model(
        "gpt2",
        "decoder: GPT-2 small",
        "transformers",
        lambda size: gpt2_of(size, 0.0),
        _feed(50257, (4, 256)),
        of_logits,
    ),
    Model("llama", "decoder: Llama, as SmolLM2-135M", "transformers", _llama, _feed(49152, (4, 256)), of_logits),
    Model("t5", "encoder and decoder: T5-small", "transformers", _t5, _t5_feed, of_logits),
    Model("whisper", "sound to text: Whisper-tiny", "transformers", _whisper, _whisper_feed, of_logits),
    Model("clip", "two towers: CLIP ViT-B/32", "transformers", _clip, _clip_feed, _of_pairs),
)
