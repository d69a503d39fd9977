"""The kinds of preview sets: of each, how what was given is written, and what stored rows looked like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dualform.answers import Previews
from dualform.store.previews.found_rows import FoundRows
from dualform.store.previews.images import Images
from dualform.store.previews.table import TableRows
from dualform.store.previews.texts import Texts


class Kind(Protocol):
    """What reading needs of a kind; a kind's class is `Content` besides, which is what writing needs."""

    kind: str
    """What it is called in manifests, on the wire and in answers, where KINDS of Previews has it, too."""

    @staticmethod
    def look(found: FoundRows) -> Previews:
        """What samples looked like, of the rows that a preview set has of them. Raises Damaged for what cannot be
        shown.
        """


KINDS: Mapping[str, type[Kind]] = {own.kind: own for own in (Images, Texts, TableRows)}
