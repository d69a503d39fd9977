"""Contributions along a direction, beside the products that they are made of.

Shapes: T slots, n queries, d_in and d_out of the layer, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dualform
from benchmarks import contest, oracle
from benchmarks.data import Data, read
from benchmarks.keys import LAYER, GeneratedKeys
from benchmarks.plan import Plan
from benchmarks.result import OURS, Row, Section, Target
from benchmarks.sections.topk import K, against_peers, asked
from benchmarks.timing import race
from benchmarks.written import LR, write_memory
from dualform import Engine
from dualform.store.snapshot import Snapshot

OUTPUT = 3
TOP = Target("at most", 0.6)
BY_LABEL = Target("at least", 300.0)
BY_SAMPLE = Target("at most", 2.0)
PASS = "torch, one pass over the keys"
SCAN = "torch, every contribution"


def run(plan: Plan) -> Section:
    section = Section("contributions", "Contributions along a direction")
    folder, made = plan.folder / "values", GeneratedKeys(plan.width)
    write_memory(folder, made, plan.slots, plan.width)
    data = read(folder, made.queries(64))
    values = _values(folder, data)
    directions = np.random.default_rng(9).normal(size=(64, values.shape[1])).astype(np.float32)
    with dualform.open(folder, backend=plan.backend) as engine:
        for count in (1, 64):
            one_hot = np.eye(values.shape[1], dtype=np.float32)[[OUTPUT] * count]
            ask = partial(_top, plan, engine, data, values, data.queries[:count])
            section.rows.append(ask(OUTPUT, one_hot, f"to an output, {asked(count)}"))
            section.rows.append(ask(directions[:count], directions[:count], f"along vectors, {asked(count)}"))
        section.rows.append(_by_label(plan, engine, data, values))
        section.rows.append(_by_sample(plan, engine, data, values))
    section.notes.append(
        f"{plan.slots:,} slots of {data.keys.shape[1]} + {values.shape[1]} numbers, which are generated, the keys as "
        "where no study is at hand. torch and NumPy hold both matrices and multiply them as they stand, on all cores; "
        "of one output they read its column alone. dualform opened the folder, and gives the ids of a float64 brute "
        "force."
    )
    return section


def _values(folder: Any, data: Data) -> NDArray[np.float32]:
    stored = Snapshot.open(folder).values(LAYER)
    values = np.empty((stored.rows, stored.width), dtype=np.float32)
    for start, block in stored.blocks(1 << 14):
        values[start : start + len(block)] = block
    assert len(values) == len(data.keys)
    return values


def _top(
    plan: Plan,
    engine: Engine,
    data: Data,
    values: NDArray[np.float32],
    queries: NDArray[np.float32],
    target: Any,
    directions: NDArray[np.float32],
    question: str,
) -> Row:
    """`directions`: float32[n, d_out], what `target` says."""
    right = best(data.keys, values, queries, directions)
    scores = _Peers(data.keys, values, queries, directions, OUTPUT if isinstance(target, int) else None)
    contestants: dict[str, Callable[[], Any]] = {
        OURS: partial(engine.topk, LAYER, queries, K, score="contribution", target=target, allow_inexact=True),
        "torch": lambda: scores.torch().topk(K, dim=1).indices,
        "NumPy": lambda: np.argpartition(scores.numpy(), -K, axis=1)[:, -K:],
    }
    ran = race(contestants, plan.repeats, plan.patience)

    cells = {name: contest.cell(name, own, contest.against(right)) for name, own in ran.items()}
    return against_peers(f"top-{K} by contribution, {question}", question, cells, TOP)


class _Peers:
    """What torch and NumPy make of the same matrices."""

    def __init__(
        self,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        queries: NDArray[np.float32],
        directions: NDArray[np.float32],
        output: int | None,
    ) -> None:
        self._keys, self._values, self._queries, self._directions = keys, values, queries, directions
        self._output = output
        self._coefficient = np.float32(-LR)

    def torch(self) -> torch.Tensor:
        keys, values, queries, directions = map(
            torch.from_numpy, (self._keys, self._values, self._queries, self._directions)
        )
        worth = values[:, self._output] if self._output is not None else directions @ values.T
        return (queries @ keys.T) * (worth * float(self._coefficient))

    def numpy(self) -> NDArray[np.float32]:
        own = self._values[:, self._output] if self._output is not None else self._directions @ self._values.T
        found: NDArray[np.float32] = (self._queries @ self._keys.T) * (own * self._coefficient)
        return found


def best(
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    queries: NDArray[np.float32],
    directions: NDArray[np.float32],
) -> oracle.Best:
    """The right answer: candidates from float64 products, ranked by sums that are rounded once each."""
    slots, scores = [], []
    for query, direction in zip(queries, directions, strict=True):
        every = np.concatenate(
            [
                (keys[start : start + oracle.BLOCK].astype(np.float64) @ query)
                * (values[start : start + oracle.BLOCK].astype(np.float64) @ direction)
                for start in range(0, len(keys), oracle.BLOCK)
            ]
        )
        near = np.argpartition(-LR * every, -(K + oracle.SPARE))[-(K + oracle.SPARE) :]
        own = oracle.exact_scores(keys[near], query) * (-LR * oracle.exact_scores(values[near], direction))
        order = np.lexsort((near, -own))[:K]
        slots.append(near[order])
        scores.append(own[order])
    return oracle.Best(slots, scores, np.zeros(len(queries)))


def _by_label(plan: Plan, engine: Engine, data: Data, values: NDArray[np.float32]) -> Row:
    """Sums by label of groups that were asked for before, beside a scan of every contribution."""
    query = data.queries[:1]
    one_hot = np.eye(values.shape[1], dtype=np.float32)[[OUTPUT]]
    scores, groups = _Peers(data.keys, values, query, one_hot, None), data.groups("label")
    numbers = torch.from_numpy(groups.numbers)
    contestants: Mapping[str, Callable[[], Any]] = {
        OURS: partial(engine.group_sum, LAYER, query, "label", score="contribution", target=OUTPUT, allow_inexact=True),
        SCAN: lambda: torch.zeros(1, groups.count).index_add_(1, numbers, scores.torch()),
    }
    ran = race(contestants, plan.repeats, plan.patience)
    right = np.zeros(groups.count)
    np.add.at(right, groups.numbers, scores.numpy()[0].astype(np.float64))
    cells = {name: contest.cell(name, own, partial(_near, right)) for name, own in ran.items()}
    return _ratio("contributions by label, groups asked for before, 1 query", cells, SCAN, BY_LABEL, times=True)


def _by_sample(plan: Plan, engine: Engine, data: Data, values: NDArray[np.float32]) -> Row:
    """The ten samples that pushed most, beside one pass over the keys."""
    query = data.queries[:1]
    keys, own = torch.from_numpy(data.keys), torch.from_numpy(query[0])
    contestants: Mapping[str, Callable[[], Any]] = {
        OURS: partial(
            engine.group_sum, LAYER, query, "sample", score="contribution", target=OUTPUT, allow_inexact=True, k=K
        ),
        PASS: lambda: keys @ own,
    }
    ran = race(contestants, plan.repeats, plan.patience)
    groups = data.groups("sample")
    right = np.zeros(groups.count)
    np.add.at(right, groups.numbers, (data.keys @ query[0]).astype(np.float64) * values[:, OUTPUT] * -LR)
    expected = np.sort(np.abs(right))[::-1][:K]

    def check(name: str, answer: Any) -> tuple[str, str]:
        return _near(expected, name, np.abs(answer.sums)) if contest.ours(name) else ("", "")

    cells = {name: contest.cell(name, one, check) for name, one in ran.items()}
    question = f"the {K} of {groups.count:,} samples that contributed most, 1 query"
    return _ratio(question, cells, PASS, BY_SAMPLE, times=False)


def _near(right: NDArray[np.float64], name: str, answer: Any) -> tuple[str, str]:
    """Sums of float32 scores are good to some 1e-3 of the largest; wrong ones are further off."""
    found = np.asarray(getattr(answer, "sums", answer), dtype=np.float64)[0]
    off = np.abs(found - right).max() / np.abs(right).max()
    return ("" if off < 1e-2 else f"off by {off:.1e} of the largest sum"), ""


def _ratio(question: str, cells: Any, beside: str, target: Target, times: bool) -> Row:
    """Our time over the other's, or with `times` how many times as long the other takes."""
    ours, other = cells[OURS].seconds, cells[beside].seconds
    if ours is None or other is None:
        return Row(question, cells, target=target)
    return Row(question, cells, beside, other, other / ours if times else ours / other, target, question)
