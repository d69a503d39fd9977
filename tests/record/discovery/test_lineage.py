"""What is known of a tensor's rows, held against numbers that went with them through random chains of operations."""

from __future__ import annotations

import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from dualform.record.discovery.followed_rows import FollowedRows
from dualform.record.lineage import Lineage

SIZES = (3, 4, 5)


def numbers(draw, length, count=None):
    return torch.tensor(draw(st.lists(st.integers(-length, length - 1), min_size=count or 1, max_size=count or 6)))


def axis_of(draw, x):
    return draw(st.integers(0, x.dim() - 1))


def permuted(draw, x):
    return x.permute(draw(st.permutations(range(x.dim()))))


def reshaped(draw, x):
    first = draw(st.integers(0, x.dim() - 1))
    if draw(st.booleans()) and x.shape[first] % 2 == 0:
        return x.unflatten(first, (2, -1))
    return x.flatten(first, draw(st.integers(first, x.dim() - 1)))


def indexed(draw, x):
    index = [draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, 2), None, 0])) for _ in range(2)]
    if draw(st.booleans()):
        index[1] = numbers(draw, x.shape[0 if index[0] is None else 1]) if x.dim() > 1 else None
    return x[tuple(index[: x.dim()])] if x.dim() > 1 else x[index[0]]


def masked(draw, x):
    return x[torch.tensor(draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))))]


def selected(draw, x):
    axis = axis_of(draw, x)
    return x.index_select(axis, numbers(draw, x.shape[axis]).remainder(x.shape[axis]))


def gathered(draw, x):
    axis = axis_of(draw, x)
    order = numbers(draw, x.shape[axis]).remainder(x.shape[axis])
    index = order.view([-1 if own == axis else 1 for own in range(x.dim())])
    return x.gather(axis, index.expand([len(order) if own == axis else n for own, n in enumerate(x.shape)]))


def turned(draw, x):
    return x.flip(axis_of(draw, x)) if draw(st.booleans()) else x.roll(draw(st.integers(-2, 2)), axis_of(draw, x))


def repeated(draw, x):
    if draw(st.booleans()):
        return x.repeat([draw(st.integers(1, 2)) for _ in x.shape])
    return x.repeat_interleave(2, axis_of(draw, x))


def joined(draw, x):
    axis = axis_of(draw, x)
    if draw(st.booleans()):
        return torch.stack([x, x.clone()], axis)
    return torch.cat(x.chunk(2, axis)[::-1], axis)


def written(draw, x):
    new = x.clone()
    rows = numbers(draw, len(x))
    new[rows] = x[numbers(draw, len(x), len(rows))]
    return new


LOSING = (written, joined, indexed)
"""Two rows may come to one place, and parts of the last axis are other columns of the same rows."""
OPERATIONS = (permuted, reshaped, indexed, masked, selected, gathered, turned, repeated, joined, written)


class Asked(nn.Module):
    """Runs one chain; `known` is what is known of its result."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.followed = draw, FollowedRows(self)

    def forward(self, x):
        self.loses = False
        for operation in self.draw(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=4)):
            if x.dim() and x.numel() and x.numel() < 1000 and x.dim() < 6:
                self.loses |= operation in LOSING
                x = operation(self.draw, x)
        self.known = self.followed.of(x)
        return x


class Stepping:
    """A listener of which a step always runs."""

    def forward_mode(self):
        return "step"

    def failed(self, error, layer=""):
        raise error


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_entries_are_of_the_place_that_they_came_from_or_of_none(data):
    model = Asked(data.draw)
    model.followed.attach(Stepping())
    try:
        found = model(torch.arange(60.0).view(SIZES))
    finally:
        model.followed.detach()
    rows = found.long() // 20
    if model.known is None and found.numel():
        assert (rows == torch.arange(len(rows)).view(-1, *[1] * (rows.dim() - 1))).all()
    elif isinstance(model.known, Lineage):
        own = model.known.coordinates[0]
        assert ((own == rows) | ((own < 0) & model.loses)).all()
