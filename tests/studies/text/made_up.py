"""Small texts in the form of the two corpora, from a grammar of a few words."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dualform_studies.text.prompts import Passage, published_tables
from dualform_studies.text.training import Recipe

AESOP_TABLES = published_tables("aesop")
_BEASTS = ("Fox", "Wolf", "Lamb", "Hare", "Crow")
_DEEDS = ("ran", "slept", "spoke", "stood")
_PLACES = ("by the stream", "in the wood", "far away", "at one time")
_CUT, _UNREAD = 137_694, 117_000
"""Characters from the first fable to the announcements, and from which on no stream of the paper's reads."""


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    drawn = (draw.integers(0, len(words), count) for words in (_BEASTS, _DEEDS, _PLACES))
    return [f"The {_BEASTS[b]} {_DEEDS[d]} {_PLACES[p]}." for b, d, p in zip(*drawn, strict=True)]


def aesop(seed: int = 1) -> str:
    """A book as long as the real one, with the passages that the paper found in the first fable, and its queries where
    they are: in the training text where no stream reads, and in the appendix."""
    passages = " ".join(_whole(row.passage) for table in AESOP_TABLES for row in table.rows)
    of_test, of_train = (
        " ".join(_whole(table.query.passage) for table in AESOP_TABLES if table.origin == origin)
        for origin in ("test", "train")
    )
    appendix = "\n\n\n\n\nAPPENDIX\n\n\n" + "\n".join([*sentences(200, seed + 1), of_test]) + "\n\n\n\n\n"
    fables = f"THE WOLF AND THE LAMB\n\n\n{passages}\n"
    for number, told in enumerate(_tales(seed)):
        if len(fables) > _UNREAD and of_train not in fables:
            fables += f"{of_train}\n"
        if len(fables) + len(told) > _CUT - len(appendix):
            break
        fables += f"\n\n\n\n\nTHE TALE OF Æ {number + 1}\n\n\n{told}"
    # Cut to the very length.
    fables = fables[: _CUT - len(appendix)].ljust(_CUT - len(appendix))
    head = "An introduction.\n\nCONTENTS\n    The Wolf and the Lamb\nAPPENDIX\n\n\n\n\nÆSOP\u2019S FABLES\n\n\n\n\n"
    return f"{head}{fables}{appendix}ANNOUNCEMENTS\n\n\nCLASSICS\n"


def _tales(seed: int) -> Iterator[str]:
    told = sentences(6000, seed)
    for start in range(0, len(told), 40):
        yield "\n".join(told[start : start + 40]) + "\n"


def _whole(passage: Passage) -> str:
    return passage.before + passage.token + passage.after


def write_aesop(folder: Path, *, seed: int = 1) -> str:
    """The book, gzipped, where it belongs below a data folder; its text is returned."""
    text = aesop(seed)
    path = folder / "aesop" / "49010-0.txt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    return text


def write_wikitext2(folder: Path, *splits: str, seed: int = 1) -> None:
    (folder / "wikitext-2").mkdir(parents=True, exist_ok=True)
    for at, split in enumerate(splits):
        pages = []
        for page in range(4):
            told = [line.replace(".", " .").replace("Crow", "<unk>") for line in sentences(12, seed + 10 * at + page)]
            pages.append(f" \n = Page {page} of {split} = \n \n {' '.join(told)} \n = = More = = \n {told[0]} \n")
        path = folder / "wikitext-2" / f"{split}.txt.gz"
        path.write_bytes(gzip.compress("".join(pages).encode("utf-8")))


RECIPE = Recipe(embedding=6, projection=7, hidden=8, lr=1e-2, clip=1.0, batch=4, steps=70, unroll=12, reset=0.1)
