"""Small texts in the form of the two corpora, from a grammar of a few words."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

_BEASTS = ("Fox", "Wolf", "Lamb", "Hare", "Crow")
_DEEDS = ("ran", "slept", "spoke", "stood")
_PLACES = ("by the stream", "in the wood", "far away", "at one time")


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [f"The {draw.choice(_BEASTS)} {draw.choice(_DEEDS)} {draw.choice(_PLACES)}." for _ in range(count)]


def write_aesop(folder: Path, *, fables: int = 12, seed: int = 1) -> str:
    """A book with fables, an appendix and announcements; the whole text is returned."""
    told = [f"\n\n\n\nTHE TALE OF Æ{'I' * (at + 1)}\n\n\n" + "\n".join(sentences(8, seed + at)) for at in range(fables)]
    book = "".join(told)
    appendix = "\n\n\n" + "\n".join(sentences(6, seed + 100)) + "\n\n\n\n\n"
    text = f"CONTENTS\n\nTHE TALE\nAPPENDIX\n{book}\n\n\n\n\nAPPENDIX\n{appendix}ANNOUNCEMENTS\n\n\nCLASSICS\n"
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
