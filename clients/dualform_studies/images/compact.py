"""The study `compact`: remarks 3.1, 3.3 and 3.4 of the paper on one training.

The order within the memory does not matter (remark 3.1): the same pairs are recorded in two orders. Any keys x_t and
values e_t can be recorded: linear layers on which the loss is -sum_t (W x_t) . e_t have the output gradients -e_t, so
that plain SGD with a learning rate of 1 adds e_t x_t^T each.

A query orthogonal to all keys of a layer (remark 3.3) draws no attention, so the layer answers W_0 q and its bias:
nothing that was learned from keys speaks.

What training added to a layer is a sum of few rank-one terms (remark 3.4):

    [W | b]_T - [W | b]_0  =  sum_r s_r u_r v_r^T,        s_1 >= s_2 >= …

Read as a memory, v_r is a key, over (x, 1), and s_r u_r its value: R pairs that give every query the output that all T
slots give it.

Shapes: T slots, n queries, d_in and d_out of a layer, R = min(d_out, d_in + 1) directions, m directions orthogonal to
all keys, b keys of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import Recorder
from dualform.query.engine import Engine, open_memory
from dualform_studies.claims import Claim, judge
from dualform_studies.images.datasets import Dataset
from dualform_studies.images.training import (
    Recipe,
    accuracy,
    layer_names,
    with_weights,
)
from dualform_studies.recorded_memory import distinct_slots, key_blocks, stored_queries
from dualform_studies.report import Report, percent

BEST = 10
"""Slots of greatest score that are compared."""

_PAIRS_A_STEP = 128


@dataclass(frozen=True, eq=False)
class Pairs:
    """Keys and values of some slots of every layer."""

    keys: Mapping[str, NDArray[np.float32]]
    """By layer, float32[T, d_in]."""
    values: Mapping[str, NDArray[np.float32]]
    """By layer, float32[T, d_out]: the e_t."""
    labels: NDArray[np.int64]
    """int64[T]."""

    def __len__(self) -> int:
        return len(self.labels)


def pairs_of(memory: Engine, slots: NDArray[np.int64]) -> Pairs:
    """The pairs of some slots, in their order."""
    keys, values = {}, {}
    for layer in (info.name for info in memory.info().layers):
        keys[layer] = memory.keys(layer, slots)
        errors = memory.values(layer, slots) * memory.coefficients(layer, slots)[:, None]
        values[layer] = errors.astype(np.float32)
    return Pairs(keys, values, np.asarray(memory.slots(slots)["label"], dtype=np.int64))


def record_pairs(pairs: Pairs, order: NDArray[np.int64], folder: Path) -> None:
    """A memory of the pairs in this order; `order` holds each number from 0 to T - 1 once. Its layers begin at 0."""
    model = nn.ModuleDict(
        {layer: nn.Linear(pairs.keys[layer].shape[1], pairs.values[layer].shape[1]) for layer in pairs.keys}
    )
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Recorder(model, optimizer, folder, quiet=True) as recorder:
        for start in range(0, len(order), _PAIRS_A_STEP):
            rows = order[start : start + _PAIRS_A_STEP]
            with recorder.step(dataset="pairs", label=torch.from_numpy(pairs.labels[rows]), sample=rows):
                optimizer.zero_grad()
                torch.autograd.backward(
                    [
                        -(
                            model[layer](torch.from_numpy(keys[rows])) * torch.from_numpy(pairs.values[layer][rows])
                        ).sum()
                        for layer, keys in pairs.keys.items()
                    ]
                )
                optimizer.step()


def compare_orders(pairs: Pairs, order: NDArray[np.int64], queries: Mapping[str, NDArray[np.float32]]) -> Report:
    """By layer, how far the answers about the pairs in the given order are from those about the pairs as they stand.

    `outputs` and `sums` are the greatest relative difference over the queries, of the layer's outputs and of the signed
    scores summed over each label; `same_best` is the share of queries whose BEST slots are the same pairs, but for
    those that score as much as the last: of them, either order has the ones that stand first.
    """
    with TemporaryDirectory() as folder:
        record_pairs(pairs, np.arange(len(pairs)), Path(folder, "ordered"))
        record_pairs(pairs, order, Path(folder, "shuffled"))
        with open_memory(Path(folder, "ordered")) as ordered, open_memory(Path(folder, "shuffled")) as shuffled:
            return {layer: _compare(ordered, shuffled, order, layer, own) for layer, own in queries.items()}


def _compare(
    ordered: Engine, shuffled: Engine, order: NDArray[np.int64], layer: str, queries: NDArray[np.float32]
) -> Report:
    def apart(ask: Callable[[Engine], Any]) -> float:
        """The greatest distance of two rows of the answers, relative to the length of the first."""
        one, other = (np.asarray(ask(memory), dtype=np.float64) for memory in (ordered, shuffled))
        return float((np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)).max())

    one, other = (memory.topk(layer, queries, k=BEST) for memory in (ordered, shuffled))
    same = [
        # Where slots tie with the last, either order has those that stand first.
        np.array_equal(scores, theirs)
        and set(slots[scores > scores[-1]].tolist()) == set(order[found][theirs > theirs[-1]].tolist())
        for slots, scores, found, theirs in zip(one.slots, one.scores, other.slots, other.scores, strict=True)
    ]
    return {
        "outputs": apart(lambda memory: memory.output(layer, queries)),
        "sums": apart(lambda memory: memory.group_sum(layer, queries, by="label").sums),
        "same_best": float(np.mean(same)),
    }


def update_of(
    layer: str, initial: Mapping[str, Tensor], final: Mapping[str, Tensor]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The u_r as columns of float64[d_out, R], the s_r and the v_r as rows of float64[R, d_in + 1], of an update."""
    left, strengths, right = np.linalg.svd(with_bias(layer, final) - with_bias(layer, initial), full_matrices=False)
    return left, strengths, right


def with_bias(layer: str, weights: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """float64[d_out, d_in + 1]: a layer's weight with its bias as the last column."""
    weight, bias = weights[f"{layer}.weight"].double(), weights[f"{layer}.bias"].double()
    return np.asarray(torch.cat([weight, bias[:, None]], dim=1))


SHARE = 0.999
"""Of the squared Frobenius norm of an update."""


def directions_holding(share: float, strengths: NDArray[np.float64]) -> int:
    """The least number of directions that hold so much of the update's squared Frobenius norm."""
    squares = np.concatenate([[0.0], np.cumsum(strengths**2)])
    return int(np.argmax(squares / squares[-1] >= share))


def truncated(
    layer: str,
    initial: Mapping[str, Tensor],
    update: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    rank: int,
) -> dict[str, Tensor]:
    """The layer's weight and bias with the first `rank` directions of its update, in float32, by the model's names."""
    left, strengths, right = update
    kept = with_bias(layer, initial) + (left[:, :rank] * strengths[:rank]) @ right[:rank]
    both = torch.from_numpy(kept).float()
    return {f"{layer}.weight": both[:, :-1].contiguous(), f"{layer}.bias": both[:, -1].contiguous()}


_UNSEEN = 1e-13
"""Of the keys' summed squares: a direction with less of a block of keys is orthogonal to them, as far as float32 goes
(the mean squared cosine; its root is 3e-7)."""
_KEYS_AT_ONCE = 8192


def orthogonal_directions(blocks: Iterable[NDArray[np.float32]], width: int) -> NDArray[np.float64]:
    """float64[d_in, m]: an orthonormal basis of what is orthogonal to every key; m is 0 where keys span everything.

    Each block leaves fewer directions, so that all blocks behind the first are projected onto few.
    """
    basis = np.eye(width)
    for block in blocks:
        if not basis.shape[1]:
            break
        keys = block.astype(np.float64)
        projected = keys @ basis
        squares, directions = np.linalg.eigh(projected.T @ projected)
        basis = basis @ directions[:, squares <= _UNSEEN * np.square(keys).sum()]
    return basis


def ask_span(memory: Engine, layer: str, query_set: str, initial: NDArray[np.float64]) -> Report:
    """The rank of the keys, and what a query wholly outside their span is answered beside W_0 q and the bias.

    `initial` is the layer's weight before training with its bias as the last column, float64[d_out, d_in + 1]. The
    query is the outside part of the test query that has most of it, made as long as that test query is.
    """
    queries = stored_queries(memory, query_set, layer)
    first, _ = distinct_slots(memory, layer)
    blocks = key_blocks(memory, layer, np.sort(first), _KEYS_AT_ONCE)
    basis = orthogonal_directions((keys for _, keys in blocks), queries.shape[1])
    parts = queries.astype(np.float64) @ basis
    lengths = np.square(queries.astype(np.float64)).sum(axis=1)
    shares = np.square(parts).sum(axis=1) / lengths
    report: Report = {"width": queries.shape[1], "rank": queries.shape[1] - basis.shape[1]}
    if basis.shape[1]:
        row = int(shares.argmax())
        # Where no test query leaves the span, any direction outside will do.
        part = basis @ parts[row] if shares[row] > 0 else basis[:, 0]
        outside = (part * np.sqrt(lengths[row]) / np.linalg.norm(part)).astype(np.float32)
        answer = np.asarray(memory.output(layer, outside[None]), dtype=np.float64)[0]
        bias = np.asarray(memory.weights()[f"{layer}.bias"], dtype=np.float64)
        untrained = initial[:, :-1] @ outside.astype(np.float64)
        # As lengths relative to that of W_0 q.
        report["query"] = {
            "added": float(np.linalg.norm(answer - bias - untrained) / np.linalg.norm(untrained)),
            "bias_moved": float(np.linalg.norm(bias - initial[:, -1]) / np.linalg.norm(untrained)),
        }
    return report


_PAIRS, _QUERIES = 12_800, 500
"""Slots that are recorded again in another order, and test images that are asked about them."""


def ask_compact(memory: Engine, dataset: Dataset, recipe: Recipe, seed: int) -> Report:
    """What the remarks say of a training on the dataset, measured."""
    widths, query_set = recipe.widths(dataset), dataset.query_set
    initial, final = memory.weights(at_step=0), memory.weights()
    updates = {layer: update_of(layer, initial, final) for layer in layer_names(widths)}
    kept = {layer: directions_holding(SHARE, strengths) for layer, (_, strengths, _) in updates.items()}

    def reached(ranks: Mapping[str, int]) -> float:
        """Test accuracy of the network whose layers keep so many directions each."""
        weights: dict[str, Tensor] = {}
        for layer, update in updates.items():
            weights |= truncated(layer, initial, update, ranks[layer])
        return accuracy(with_weights(widths, weights), dataset)

    return {
        "order": _shuffle(memory, query_set, seed),
        "span": {layer: ask_span(memory, layer, query_set, with_bias(layer, initial)) for layer in updates},
        "compact": {
            "directions": kept,
            "accuracy": reached(kept),
            "accuracy_all": reached({layer: len(strengths) for layer, (_, strengths, _) in updates.items()}),
        },
    }


def _shuffle(memory: Engine, query_set: str, seed: int) -> Report:
    """Pairs drawn from the whole training, as they stand and shuffled."""
    draw, slots = np.random.default_rng(seed), sum(memory.info().slots.values())
    chosen = np.sort(draw.choice(slots, size=min(_PAIRS, slots), replace=False))
    names = [layer.name for layer in memory.info().layers]
    queries = {layer: stored_queries(memory, query_set, layer)[:_QUERIES] for layer in names}
    layers = compare_orders(pairs_of(memory, chosen), draw.permutation(len(chosen)), queries)
    return {"pairs": len(chosen), "layers": layers}


def remarks(report: Report) -> Iterator[Claim]:
    """Remarks 3.1, 3.3 and 3.4, of what `ask_compact` gives; 3.3 only where some layer's keys leave a direction out."""
    layers, pairs = report["order"]["layers"].values(), report["order"]["pairs"]
    apart = max(max(layer["outputs"], layer["sums"]) for layer in layers)
    same = min(layer["same_best"] for layer in layers)
    yield judge("compact.answers", apart, f"a relative difference of {apart:.1e} at most, over {pairs:,} pairs")
    yield judge("compact.best", same, f"the same {BEST} best for {percent(same)} of the queries")
    asked = {name: layer["query"] for name, layer in report["span"].items() if "query" in layer}
    if asked:
        added, moved = (max(query[what] for query in asked.values()) for what in ("added", "bias_moved"))
        yield judge(
            "compact.orthogonal",
            added,
            f"apart from the bias, training adds {added:.1e} of the length of W₀x at most, and the bias moved by "
            f"{moved:.1e} of it at most ({', '.join(asked)})",
        )
    compact = report["compact"]
    yield judge(
        "compact.directions",
        100 * (compact["accuracy_all"] - compact["accuracy"]),
        f"{percent(compact['accuracy'], '.2f')}; {percent(compact['accuracy_all'], '.2f')} with all directions",
    )
