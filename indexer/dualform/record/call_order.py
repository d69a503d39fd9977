"""In which order a forward pass made its calls, where checkpointing runs some of them again within the backward pass.

Reentrant checkpointing makes a forward call without a gradient at first, and again, with one, when its part of the
graph is gone back through: the last part first. Each part is a node of the graph, and its number says when the forward
pass came to it. A part within a part has a node that was made when that one ran again.
"""

from __future__ import annotations

from bisect import bisect_right
from threading import get_ident
from typing import TypeAlias

import torch
from torch.compiler import is_compiling

Moment: TypeAlias = tuple[int, ...]
"""When a call was made: the numbers of the parts around it, the outermost first, and its own. They sort as calls do."""


class CallOrder:
    """Of the calls of one step."""

    def __init__(self) -> None:
        self._without_gradient: dict[int, list[tuple[int, Moment | None]]] = {}
        """By thread: of calls without a gradient, the graph's number then, and the parts that they were in."""

    def now(self) -> Moment | None:
        """Of a call that is made now; None where nothing tells in which part it is, and nothing in compiled code."""
        if is_compiling():
            return ()
        parts = self._parts()
        return None if parts is None else (*parts, torch._C._autograd._get_sequence_nr())

    def without_gradient(self) -> None:
        """A call is made now that may be the first of a part."""
        if is_compiling():
            return
        seen = self._without_gradient.setdefault(get_ident(), [])
        seen.append((torch._C._autograd._get_sequence_nr(), self._parts()))

    def _parts(self) -> Moment | None:
        """Those that run now again, the outermost first."""
        node = torch._C._current_autograd_node()
        if node is None:
            return ()
        number = node._sequence_nr()
        # The part's own first call was the next one after its node was made, and each thread numbers nodes by itself.
        first = [
            seen[place][1]
            for seen in self._without_gradient.values()
            if (place := bisect_right(seen, number, key=lambda call: call[0])) < len(seen)
        ]
        if not first or None in first or len(set(first)) > 1:
            return None
        (around,) = set(first)
        assert around is not None
        return (*around, number)
