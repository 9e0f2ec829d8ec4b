"""Recurrent networks of published sizes: a language model of LSTMs, and a listener of bidirectional GRUs."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.backend.model import Feed, Model, Size, of_logits, pick

_WORDS, _TINY_WORDS, _LETTERS = 10000, 96, 29


class LanguageModel(nn.Module):
    """Two LSTM layers over embedded words, as the medium model of Zaremba et al. for the Penn Treebank."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next word at each position."""
        hidden, _ = self.lstm(self.embed(tokens))
        logits: torch.Tensor = self.head(hidden)
        return logits


class Listener(nn.Module):
    """Convolutions over a spectrogram, then bidirectional GRUs, as Deep Speech 2."""

    def __init__(self, channels: int, width: int, layers: int, bands: int) -> None:
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv2d(1, channels, (11, 5), stride=(2, 1), padding=(5, 2)),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
        )
        self.gru = nn.GRU(channels * ((bands + 1) // 2), width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, _LETTERS)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """`[batch, 1, bands, time]` → logits of a letter at each time."""
        heard = self.ears(sound).flatten(1, 2).transpose(1, 2)
        logits: torch.Tensor = self.head(self.gru(heard)[0])
        return logits


def _words(size: Size, device: torch.device) -> Feed:
    words, shape = pick(size, (_TINY_WORDS, (2, 6)), (_WORDS, (20, 35)))
    return Feed({"tokens": torch.randint(words, shape, device=device)}, torch.randint(words, shape, device=device))


def _sound(size: Size, device: torch.device) -> Feed:
    count, bands, time = pick(size, (2, 16, 8), (8, 161, 100))
    target = torch.randint(_LETTERS, (count, time), device=device)
    return Feed({"sound": torch.randn(count, 1, bands, time, device=device)}, target)


RECURRENT_MODELS = (
    Model(
        "lstm",
        "recurrent: LSTM 2×650, Penn Treebank",
        None,
        lambda size: LanguageModel(*pick(size, (_TINY_WORDS, 16), (_WORDS, 650))),
        _words,
        of_logits,
    ),
    Model(
        "gru",
        "recurrent: convolution and bidirectional GRU 3×400, as Deep Speech 2",
        None,
        lambda size: Listener(*pick(size, (4, 16, 2, 16), (32, 400, 3, 161))),
        _sound,
        of_logits,
    ),
)
