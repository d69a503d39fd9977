"""What shards send of a block's sums, joined: the bits of a sum in order, or the columns that may not have them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from dualform.query.groups import Groups, Members
from dualform.query.shards.shards import _part, in_order, joined
from dualform.query.sums.key_sums import SortedRows, added, begins
from tests.query.shards.memories import wide


def by_group(keys, numbers):
    order = np.argsort(numbers, kind="stable")
    runs = begins(numbers[order])
    return SortedRows(order, keys[order], runs, numbers[order][runs])


def shares(keys, numbers, shards):
    """By shard, its rows by group."""
    return {int(n): by_group(keys[shards == n], numbers[shards == n]) for n in np.unique(shards)}


def check(keys, numbers, shards):
    own = shares(keys, numbers, shards)
    sums, doubtful = joined([_part(rows) for rows in own.values()], keys.shape[1])
    whole = added(by_group(keys, numbers))
    sure = np.setdiff1d(np.arange(keys.shape[1]), doubtful)
    assert sums.groups.tolist() == whole.groups.tolist()
    assert sums.sums[:, sure].tobytes() == whole.sums[:, sure].tobytes()
    assert (sums.least.tobytes(), sums.most.tobytes()) == (whole.least.tobytes(), whole.most.tobytes())
    members = Members(np.arange(len(keys)), numbers)
    groups = Groups.of((), ((),) * 3, members, np.bincount(numbers, minlength=3))
    in_order(0, sums, doubtful, groups, shards, {n: rows.keys[:, doubtful] for n, rows in own.items()})
    assert sums.sums.tobytes() == whole.sums.tobytes()
    return doubtful


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 100), st.integers(1, 3), st.integers(1, 4))
def test_what_is_not_doubted_has_the_bits_of_a_sum_in_order(seed, count, spread, groups, shards):
    rng = np.random.default_rng(seed)
    keys = wide(rng, (count, 6), spread)
    check(keys, rng.integers(0, groups, count), rng.integers(0, shards, count))


def test_a_number_that_is_rounded_away_in_one_order_alone_is_doubted():
    small = np.float32(2.0**-53)
    keys = np.array([[1, 1, 0, -0.0], [small, 2, 0, -0.0], [small, 4, 0, -0.0]], np.float32)
    numbers, shards = np.zeros(3, np.int64), np.array([0, 1, 1])
    parts = [added(rows).sums[0] for rows in shares(keys, numbers, shards).values()]
    assert parts[0][0] + parts[1][0] != (1 + float(small)) + float(small)
    assert check(keys, numbers, shards).tolist() == [0]


def test_a_group_that_one_shard_has_alone_is_not_doubted():
    keys = np.float32([[1], [2.0**-60], [2.0**-60], [3]])
    assert check(keys, np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0])).tolist() == []


def test_the_least_float32_counts_as_what_it_is():
    keys = np.float32([[2.0**-149], [2.0**-126], [2.0**-149]])
    check(keys, np.zeros(3, np.int64), np.array([0, 1, 0]))
