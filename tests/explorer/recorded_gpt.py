"""A small language model, with a table of positions that is looked up once for all texts, trained by AdamW."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import dualform
from tests.trainings import learn

WORDS, TEXTS, LENGTH, STEPS, ROWS, HELD, WIDTH = 40, 30, 9, 16, 6, 5, 12
VOCABULARY = tuple(f" word{number:02}" for number in range(WORDS))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.LayerNorm(WIDTH)
        self.mlp, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1])[None])
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm(x)).relu())


def tokens() -> Tensor:
    """int64[TEXTS, LENGTH]"""
    return torch.randint(WORDS, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(3))


def following(words: Tensor) -> Tensor:
    """Of each token the next one; -1 of the last two: of one the next is left out, to have a token without a label."""
    found = words.roll(-1, dims=1)
    found[:, -2:] = -1
    return found


def preview_set(words: Tensor) -> dualform.PreviewSet:
    each = len(VOCABULARY[0])
    places = [(each * place, each * (place + 1)) for place in range(LENGTH)]
    return dualform.PreviewSet.texts(
        ["".join(VOCABULARY[word] for word in text) for text in words.tolist()], offsets=[places] * len(words)
    )


def record(path: Path, named: bool = True, batch_size: int = 1024) -> Path:
    """STEPS steps of ROWS texts; the first HELD of them as the query set "held". `named`: whether words have names."""
    torch.manual_seed(0)
    words, model = tokens(), GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    drawn = torch.Generator().manual_seed(1)
    names = {"texts": VOCABULARY} if named else None
    with dualform.Recorder(model, optimizer, path, label_names=names, quiet=True) as recorder:
        recorder.previews("texts", preview_set(words))
        for _ in range(STEPS):
            index = torch.randint(TEXTS, (ROWS,), generator=drawn)
            labels = words[index].roll(-1, dims=1)
            with recorder.step(dataset="texts", label=labels, sample=index):
                learn(optimizer, nn.functional.cross_entropy(model(words[index]).flatten(0, 1), labels.flatten()))
        held = words[:HELD]
        recorder.query_set("held", held, label=following(held), previews=preview_set(held), batch_size=batch_size)
    return path
