"""A small training on passages of words, each word a slot; one of the passages is what a page must not run."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

import dualform
from tests.trainings import learn

WORDS, PASSAGES, STEPS, ROWS = 8, 24, 30, 6
HOSTILE = "<script>document.title='run'</script> says <b>bold</b> &amp; a < b &copy;"
_NOUNS = ("fox", "crow", "lion", "mouse", "hare", "tortoise", "grapes", "cheese")


def passages() -> list[str]:
    """Of WORDS words each; the first is HOSTILE."""
    drawn = torch.randint(len(_NOUNS), (PASSAGES, WORDS), generator=torch.Generator().manual_seed(5)).tolist()
    return [HOSTILE, *(" ".join(_NOUNS[noun] for noun in own) for own in drawn[1:])]


def offsets(passage: str) -> list[tuple[int, int]]:
    """Where each word starts and stops."""
    words = passage.split(" ")
    ends = accumulate(len(word) + 1 for word in words)
    return [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]


def preview_set() -> dualform.PreviewSet:
    own = passages()
    return dualform.PreviewSet.texts(own, offsets=[offsets(passage) for passage in own])


def record(path: Path) -> Path:
    """STEPS steps of ROWS passages, in which the next word is learned; the first ones as query sets, with
    what they look like and without, and with the words that follow as labels."""
    texts = [passage.split(" ") for passage in passages()]
    vocabulary = sorted({word for text in texts for word in text})
    words = torch.tensor([[vocabulary.index(word) for word in text] for text in texts])
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(len(vocabulary), 12), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, len(vocabulary))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    drawn = torch.Generator().manual_seed(1)
    names = {"fables": vocabulary}
    with dualform.Recorder(model, optimizer, path, label_names=names, quiet=True) as recorder:
        recorder.previews("fables", preview_set())
        for _ in range(STEPS):
            index = torch.randint(PASSAGES, (ROWS,), generator=drawn)
            following = _following(words[index])
            with recorder.step(dataset="fables", label=following, sample=index):
                learn(optimizer, nn.functional.cross_entropy(model(words[index]).flatten(0, 1), following.flatten()))
        own = passages()[:8]
        recorder.query_set(
            "held", words[:8], previews=dualform.PreviewSet.texts(own, offsets=[offsets(passage) for passage in own])
        )
        recorder.query_set("unseen", words[:8])
        recorder.query_set("labelled", words[:8], label=_following(words[:8]))
    return path


def _following(words: Tensor) -> Tensor:
    """Of each word the next one, of the last one the first."""
    return words.roll(-1, dims=1)
