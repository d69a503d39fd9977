"""How many questions a server holds at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dualform.errors import Overloaded
from dualform_service.turns import Asker, Holdings


class Places:
    """A fixed number of places for questions. A question that finds none is refused at once: queues hide overload."""

    def __init__(self, count: int, what: str, option: str) -> None:
        """`what` takes them; `option` raises their number."""
        self._count, self._what, self._option = count, what, option
        self._held = Holdings()
        """By asker."""

    @contextmanager
    def one(self, asker: Asker) -> Iterator[None]:
        """Hold a place. Raises Overloaded if none is free, or the asker has all that it may have."""
        if self._held.total() >= self._count:
            raise self._refusal(f"{self._count} {self._what}")
        if self._held[asker.name] >= (most := asker.most(self._count)):
            raise self._refusal(f"{most} {self._what} of this token, half of all")
        self._held[asker.name] += 1
        try:
            yield
        finally:
            self._held.give_back(asker.name)

    def _refusal(self, held: str) -> Overloaded:
        return Overloaded(
            f"The server already holds {held}.",
            hint=f"Ask again in a moment, or start it with a larger {self._option}.",
        )
