"""The kinds of galleries: of each, how what was given is written, and what stored rows looked like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dualform.answers import Appearances
from dualform.store.galleries.found_rows import FoundRows
from dualform.store.galleries.images import Images
from dualform.store.galleries.table import TableRows
from dualform.store.galleries.texts import Texts


class Kind(Protocol):
    """What reading needs of a kind; a kind's class is `Content` besides, which is what writing needs."""

    kind: str
    """What it is called in manifests, on the wire and in answers, where KINDS of Appearances has it, too."""

    @staticmethod
    def look(found: FoundRows) -> Appearances:
        """What samples looked like, of the rows that a gallery has of them. Raises Damaged for what cannot be shown."""


KINDS: Mapping[str, type[Kind]] = {own.kind: own for own in (Images, Texts, TableRows)}
