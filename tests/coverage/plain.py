"""Networks of torch's own modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.parametrizations import weight_norm

import dualform

from .network import BATCH, CLASSES, LENGTH, SAMPLES, WORDS, Batch, Network, images, labelled_texts, texts


def _image_class(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch["pixel_values"]), batch["labels"])


def _text_class(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch["input_ids"]), batch["labels"])


def _next_word(model: nn.Module, batch: Batch) -> Tensor:
    tokens = batch["input_ids"]
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _reconstruction(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch["pixel_values"]), batch["pixel_values"])


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, CLASSES),
    )  # fmt: skip


class _Encoder(nn.Module):
    """nn.TransformerEncoder over tokens, its mean classified."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(WORDS, 32), nn.TransformerEncoder(layer, 2)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, 32))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.place).mean(1))


class _Translator(nn.Module):
    """nn.Transformer, encoder and decoder, from a text to its first half."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.transformer = nn.Transformer(32, 2, 1, 1, 64, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        return self.head(self.transformer(x.flip(1)[:, : LENGTH // 2], x, tgt_mask=mask))


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(WORDS, 16), kind(16, 32, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0])


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(WORDS, 16), nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens))


class _Convolved(nn.Module):
    """Dilated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Conv1d(16, WORDS, 1)
        self.layers = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=dilation) for dilation in (1, 2, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        for layer in self.layers:
            x = x + torch.relu(layer(nn.functional.pad(x, (layer.dilation[0], 0))))
        return self.head(x).transpose(1, 2)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([torch.relu(self.stem(x)), torch.relu(self.up(torch.relu(self.down(x))))], 1))


def _film() -> Batch:
    pictures = images(1, 8)
    moved = [torch.roll(pictures["pixel_values"], frame, -1) for frame in range(4)]
    return {"pixel_values": torch.stack(moved, 2), "labels": pictures["labels"]}


def _film_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(32, CLASSES)
    )


class _Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed: a product of which the recorder is told by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(256, 32)
        self.shift = nn.Parameter(torch.zeros(256))

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.flatten(1)
        decoded = dualform.tap(torch.tanh(self.encoder(x)), self.encoder.weight.T, "decoder")
        return (decoded + self.shift).view_as(pixels)


class _LowRank(nn.Module):
    """Free matrices, multiplied by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(s, 8) / s**0.5) for s in (256, CLASSES))

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ self.a @ self.b.T


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), weight_norm(nn.Linear(256, 32)), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


def _grey() -> Batch:
    return images(1, 16)


assert SAMPLES >= BATCH
MLP = Network("MLP", _mlp, _grey, _image_class)
CNN = Network("CNN", _cnn, images, _image_class)
ENCODER = Network("nn.TransformerEncoder", _Encoder, labelled_texts, _text_class)
TRANSLATOR = Network(
    "nn.Transformer",
    _Translator,
    texts,
    lambda m, b: cross_entropy(m(b["input_ids"]).flatten(0, 1), b["input_ids"].flatten()),
    {"spaces": {"*.encoder.*": "source", "*.multihead_attn.[kv]": "source"}},
)
LSTM = Network("LSTM", lambda: _Recurrent(nn.LSTM), texts, _next_word)
GRU = Network("GRU", lambda: _Recurrent(nn.GRU), texts, _next_word)
BAG = Network("EmbeddingBag", _Bag, labelled_texts, _text_class)
CONVOLVED = Network("Conv1d over time", _Convolved, texts, _next_word)
UNET = Network("U-Net", _UNet, images, _reconstruction)
FILM = Network("Conv3d", _film_cnn, _film, _image_class)
TIED = Network("tied autoencoder", _Tied, _grey, _reconstruction)
LOW_RANK = Network("free matrices", _LowRank, _grey, _image_class)
NORMED = Network("weight norm, BatchNorm", _normed, _grey, _image_class)
