"""A training that forgets, and what the acceptance tests need to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from dualform.methods import Answers
from tests.explorer.browser.shown import address
from tests.explorer.served import Served


@dataclass(frozen=True)
class Study:
    memory: Answers
    pages: Served
    query_set: str
    """Of the dataset that was learned first."""
    other: str
    """The dataset that was learned after it, and made the network forget."""
    layers: tuple[str, ...]
    """All recorded ones, of which the last gives the network's outputs."""
    side: int
    """Of its images, in pixels."""

    @property
    def where(self) -> str:
        """The mask that leaves the other dataset out."""
        return f"dataset <> '{self.other}'"

    def url(self, item: str, **params: str) -> str:
        return self.pages.url + address(item, self.layers[-1], **params)
