"""The study `compact`: remarks 3.1, 3.3 and 3.4 of the paper on one training.

The order within the memory does not matter (paper, remark 3.1): the same pairs recorded in two orders.

Any keys x_t and values e_t can be recorded: linear layers on which the loss is -sum_t (W x_t) . e_t have the output
gradients -e_t, so that plain SGD with a learning rate of 1 adds e_t x_t^T each. Shapes: T pairs, n queries.

What training added to a layer, as a sum of few rank-one terms (paper, remark 3.4).

    [W | b]_T - [W | b]_0  =  sum_r s_r u_r v_r^T,        s_1 >= s_2 >= …

Read as a memory, v_r is a key, over (x, 1), and s_r u_r its value: R pairs that give every query the output that all T
slots give it. Shapes: R = min(d_out, d_in + 1) directions, T slots.

Queries orthogonal to all keys of a layer (paper, remark 3.3).

Such a query draws no attention, so the layer answers W_0 q and its bias: nothing that was learned from keys speaks.
Shapes: d_in, m directions orthogonal to all keys, n queries, b keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform import Recorder
from dualform.query.engine import Engine, open_memory
from dualform_studies.assignment import Assignment, Progress, or_silent
from dualform_studies.claims import Claim, claims_table, judge
from dualform_studies.figures import INK, MARKS, new_figure
from dualform_studies.images.datasets import Dataset, load_dataset
from dualform_studies.images.training import (
    Recipe,
    accuracy,
    batch_rows,
    batches,
    layer_names,
    query_set_name,
    record,
    with_weights,
)
from dualform_studies.recorded_memory import open_recorded, reconstruction_report, reconstruction_table
from dualform_studies.report import Cell, Page, Report, Table, bytes_on_disk, check_free, listed, percent, report_folder

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
    layers = [layer.name for layer in memory.info().layers]
    keys, values = {}, {}
    for layer in layers:
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
                torch.autograd.backward([_loss(model[layer], pairs, layer, rows) for layer in pairs.keys])
                optimizer.step()


def _loss(linear: nn.Module, pairs: Pairs, layer: str, rows: NDArray[np.int64]) -> torch.Tensor:
    keys, values = torch.from_numpy(pairs.keys[layer][rows]), torch.from_numpy(pairs.values[layer][rows])
    loss: torch.Tensor = -(linear(keys) * values).sum()
    return loss


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
    outputs = [np.asarray(memory.output(layer, queries), dtype=np.float64) for memory in (ordered, shuffled)]
    sums = [memory.group_sum(layer, queries, by="label").sums for memory in (ordered, shuffled)]
    one, other = (memory.topk(layer, queries, k=BEST) for memory in (ordered, shuffled))
    same = [
        scores.tobytes() == theirs.tobytes() and _above_last(slots, scores) == _above_last(order[found], theirs)
        for slots, scores, found, theirs in zip(one.slots, one.scores, other.slots, other.scores, strict=True)
    ]
    return {"outputs": _apart(*outputs), "sums": _apart(*sums), "same_best": float(np.mean(same))}


def _above_last(slots: NDArray[np.int64], scores: NDArray[np.float32]) -> set[int]:
    """The slots that score more than the last of them."""
    return set(slots[scores > scores[-1]].tolist())


def _apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The greatest distance of two rows, relative to the length of the first."""
    return float((np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)).max())


_SLOTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Update:
    layer: str
    initial: NDArray[np.float64]
    """float64[d_out, d_in + 1]: the weight that training began with, its bias in the last column."""
    left: NDArray[np.float64]
    """float64[d_out, R]: the u_r."""
    strengths: NDArray[np.float64]
    """float64[R]: the s_r, descending."""
    right: NDArray[np.float64]
    """float64[R, d_in + 1]: the v_r."""

    @property
    def directions(self) -> int:
        """R."""
        return len(self.strengths)

    def energy(self) -> NDArray[np.float64]:
        """float64[R + 1]: the share of the update's squared Frobenius norm that the first r directions hold."""
        squares = np.concatenate([[0.0], np.cumsum(self.strengths**2)])
        shares: NDArray[np.float64] = squares / squares[-1]
        return shares

    def directions_holding(self, share: float) -> int:
        """The least number of directions that hold so much of the update's squared Frobenius norm."""
        return int(np.argmax(self.energy() >= share))

    def numbers(self, rank: int) -> int:
        """How many numbers the keys and values of the first directions are."""
        return rank * sum(self.initial.shape)

    def truncated(self, rank: int) -> NDArray[np.float64]:
        """float64[d_out, d_in + 1]: [W | b]_0 and the first `rank` directions."""
        kept: NDArray[np.float64] = (self.left[:, :rank] * self.strengths[:rank]) @ self.right[:rank]
        return self.initial + kept

    def parameters(self, rank: int) -> dict[str, Tensor]:
        """The layer's weight and bias with the first `rank` directions, in float32, under the model's own names."""
        both = torch.from_numpy(self.truncated(rank)).float()
        return {f"{self.layer}.weight": both[:, :-1].contiguous(), f"{self.layer}.bias": both[:, -1].contiguous()}


def update_of(layer: str, initial: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> Update:
    """The update between two state dicts, decomposed in float64."""
    start = with_bias(layer, initial)
    left, strengths, right = np.linalg.svd(with_bias(layer, final) - start, full_matrices=False)
    return Update(layer, start, left, strengths, right)


def with_bias(layer: str, weights: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """float64[d_out, d_in + 1]: a layer's weight with its bias as the last column."""
    weight, bias = weights[f"{layer}.weight"].double(), weights[f"{layer}.bias"].double()
    both: NDArray[np.float64] = torch.cat([weight, bias[:, None]], dim=1).numpy()
    return both


def mixture(memory: Engine, update: Update, directions: int) -> list[Report]:
    """What the first directions are made of: each strength is a sum over all slots.

        s_r  =  u_r^T (sum_t e_t (x_t, 1)^T) v_r  =  sum_t c_t,        c_t = (u_r . e_t) (v_r . (x_t, 1))

    Of each direction: its strength, the sum found, the effective number of slots, (sum |c_t|)^2 / sum c_t^2, how much
    the terms cancel, sum |c_t| / |sum c_t|, and the share of sum |c_t| that the greatest term has.
    """
    terms = np.concatenate(list(_terms(memory, update, directions)))
    sizes = np.abs(terms)
    return [
        {
            "strength": float(update.strengths[at]),
            "sum": float(terms[:, at].sum()),
            "effective_slots": float(sizes[:, at].sum() ** 2 / (sizes[:, at] ** 2).sum()),
            "cancellation": float(sizes[:, at].sum() / abs(terms[:, at].sum())),
            "greatest_share": float(sizes[:, at].max() / sizes[:, at].sum()),
        }
        for at in range(terms.shape[1])
    ]


def _terms(memory: Engine, update: Update, directions: int) -> Iterator[NDArray[np.float64]]:
    """float64[b, directions]: the c_t of a block of slots."""
    slots = np.arange(sum(memory.info().slots.values()))
    left, right = update.left[:, :directions], update.right[:directions].T
    for start in range(0, len(slots), _SLOTS_AT_ONCE):
        block = slots[start : start + _SLOTS_AT_ONCE]
        keys, values = memory.keys(update.layer, block), memory.values(update.layer, block)
        errors = (values @ left) * memory.coefficients(update.layer, block)[:, None]
        yield errors * (keys @ right[:-1] + right[-1])


ALL_LAYERS = "all layers"
SHARES = (0.9, 0.99, 0.999)
"""Of the squared Frobenius norm, and of the accuracy."""

_EACH_UP_TO = 32
"""Ranks up to here are all tried, of those beyond every one that is an eighth greater than the one before."""


def tried_ranks(directions: int) -> list[int]:
    """The ranks that are tried of a layer with so many directions, ascending: 0, 1, 2, …, R."""
    ranks = list(range(min(_EACH_UP_TO, directions) + 1))
    while ranks[-1] < directions:
        ranks.append(min(directions, ranks[-1] + ranks[-1] // 8))
    return ranks


def accuracies_by_rank(
    updates: Mapping[str, Update], widths: Sequence[int], dataset: Dataset, progress: Progress | None = None
) -> dict[str, dict[int, float]]:
    """By layer and rank: the test accuracy where that layer alone keeps so many directions; the last entry is of all
    layers, where each keeps so many, or all that it has."""
    cases: dict[str, Sequence[str]] = {name: (name,) for name in updates} | {ALL_LAYERS: tuple(updates)}
    ranks = {name: tried_ranks(max(updates[layer].directions for layer in cut)) for name, cut in cases.items()}
    total, done = sum(map(len, ranks.values())), 0
    found: dict[str, dict[int, float]] = {}
    for name, cut in cases.items():
        found[name] = {}
        for rank in ranks[name]:
            or_silent(progress)("evaluating truncated layers", done, total)
            kept = {layer: rank if layer in cut else update.directions for layer, update in updates.items()}
            found[name][rank] = accuracy_with(updates, kept, widths, dataset)
            done += 1
    or_silent(progress)("evaluating truncated layers", total, total)
    return found


def accuracy_with(
    updates: Mapping[str, Update], kept: Mapping[str, int], widths: Sequence[int], dataset: Dataset
) -> float:
    """Test accuracy of the network whose layers keep so many directions each, at most all that they have."""
    weights: dict[str, Tensor] = {}
    for layer, update in updates.items():
        weights |= update.parameters(min(kept[layer], update.directions))
    return accuracy(with_weights(widths, weights), dataset)


def rank_keeping(share: float, by_rank: Mapping[int, float]) -> int:
    """The least rank tried from which on accuracy never falls below this share of that with all directions."""
    ranks = sorted(by_rank)
    least = share * by_rank[ranks[-1]]
    below = [rank for rank in ranks if by_rank[rank] < least]
    return next(rank for rank in ranks if not below or rank > below[-1])


def rank_report(update: Update, by_rank: Mapping[int, float], slots: int) -> Report:
    """One layer's row: directions that hold each share of the update and of the accuracy, and the numbers they are."""
    whole = update.directions_holding(SHARES[-1])
    return {
        "directions": update.directions,
        "holding_energy": {str(share): update.directions_holding(share) for share in SHARES},
        "keeping_accuracy": {str(share): rank_keeping(share, by_rank) for share in SHARES},
        "numbers": {
            "slots": slots * (len(update.left) + update.right.shape[1] - 1),
            "directions": update.numbers(whole),
            "weight": update.initial.size,
        },
    }


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


def key_blocks(memory: Engine, layer: str) -> Iterator[NDArray[np.float32]]:
    """float32[b, d_in]: every distinct stored key of a layer once."""
    rows = memory.key_rows(layer, np.arange(sum(memory.info().slots.values())))
    _, first = np.unique(rows, return_index=True)
    for start in range(0, len(first), _KEYS_AT_ONCE):
        yield memory.keys(layer, np.sort(first)[start : start + _KEYS_AT_ONCE])


def ask_span(memory: Engine, layer: str, query_set: str, initial: NDArray[np.float64]) -> Report:
    """How much of the test queries lies outside the keys' span, and what a query wholly outside is answered.

    `initial` is the layer's weight before training with its bias as the last column, float64[d_out, d_in + 1]. The
    query is the outside part of the test query that has most of it, made as long as that test query is.
    """
    queries = memory.query_set(query_set, layer).queries
    assert queries is not None, "the layer was named"
    basis = orthogonal_directions(key_blocks(memory, layer), queries.shape[1])
    parts = queries.astype(np.float64) @ basis
    lengths = np.square(queries.astype(np.float64)).sum(axis=1)
    shares = np.square(parts).sum(axis=1) / lengths
    report: Report = {
        "width": queries.shape[1],
        "rank": queries.shape[1] - basis.shape[1],
        "outside_mean": float(shares.mean()),
        "outside_most": float(shares.max()),
    }
    if basis.shape[1]:
        row = int(shares.argmax())
        # Where no test query leaves the span, any direction outside will do.
        part = basis @ parts[row] if shares[row] > 0 else basis[:, 0]
        outside = part * np.sqrt(lengths[row]) / np.linalg.norm(part)
        report["query"] = _ask_outside(memory, layer, outside.astype(np.float32), queries[row], initial)
        report["query"]["row"] = row
    return report


def _ask_outside(
    memory: Engine,
    layer: str,
    outside: NDArray[np.float32],
    inside: NDArray[np.float32],
    initial: NDArray[np.float64],
) -> Report:
    """The answer to a query outside the span beside W_0 q and the bias, and the same for the test query itself; and how
    far the bias moved. All are lengths relative to that of W_0 q.
    """
    both = np.stack([outside, inside])
    answers = np.asarray(memory.output(layer, both), dtype=np.float64)
    bias = np.asarray(memory.weights()[f"{layer}.bias"], dtype=np.float64)
    untrained = both.astype(np.float64) @ initial[:, :-1].T
    lengths = np.linalg.norm(untrained, axis=1)
    added = np.linalg.norm(answers - bias - untrained, axis=1) / lengths
    best = memory.topk(layer, both, k=1, score="abs")
    return {
        "added": float(added[0]),
        "bias_moved": float(np.linalg.norm(bias - initial[:, -1]) / lengths[0]),
        "added_test_query": float(added[1]),
        "greatest_weight": float(best.scores[0][0]),
        "greatest_weight_test_query": float(best.scores[1][0]),
    }


ORDER, SPAN, RANKS = "The order of the slots", "Queries orthogonal to all keys", "Few directions in place of all slots"
"""Headings of the page."""

SAME_ANSWER = 1e-6
"""The greatest relative difference between answers that are the same."""


def remarks(report: Report) -> Iterator[Claim]:
    """Remarks 3.1, 3.3 and 3.4, of the study's report; 3.3 only where some layer's keys leave a direction out."""
    yield from _order(report)
    yield from _orthogonal(report)
    yield from _compact(report)


def _order(report: Report) -> Iterator[Claim]:
    layers, pairs = report["order"]["layers"].values(), report["order"]["pairs"]
    apart = max(max(layer["outputs"], layer["sums"]) for layer in layers)
    same = min(layer["same_best"] for layer in layers)
    yield judge("compact.answers", apart, f"a relative difference of {apart:.1e} at most, over {pairs:,} pairs")
    yield judge("compact.best", same, f"the same {BEST} best for {percent(same)} of the queries")


def _orthogonal(report: Report) -> Iterator[Claim]:
    asked = {name: layer["query"] for name, layer in report["span"].items() if "query" in layer}
    if not asked:
        return
    added, moved = (max(query[what] for query in asked.values()) for what in ("added", "bias_moved"))
    yield judge(
        "compact.orthogonal",
        added,
        f"apart from the bias, training adds {added:.1e} of the length of W₀x at most, and the bias moved by "
        f"{moved:.1e} of it at most ({', '.join(asked)})",
    )


def _compact(report: Report) -> Iterator[Claim]:
    compact = report["compact"]
    lost = 100 * (compact["accuracy_all"] - compact["accuracy"])
    yield judge(
        "compact.directions",
        lost,
        f"{percent(compact['accuracy'], '.2f')}; {percent(compact['accuracy_all'], '.2f')} with all directions",
    )


def draw_ranks(path: Path, report: Report) -> Path:
    """A panel a layer: its update's energy and the test accuracy by the number of directions; the last is of all."""
    names = list(report["accuracy"])
    with new_figure(path, 4.6) as figure:
        panels = figure.subplots(2, (len(names) + 1) // 2, sharex=True, sharey=True, squeeze=False).ravel()
        for panel, name in zip(panels, names, strict=False):
            _draw(panel, name, report["accuracy"][name], report["energy"].get(name))
        for panel in panels[len(names) :]:
            panel.set_axis_off()
        panels[0].set_xscale("log")
        panels[0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        figure.supxlabel("directions of the update that are kept", fontsize=8.5)
        figure.supylabel("per cent", fontsize=8.5)
        lines, words = panels[0].get_legend_handles_labels()
        figure.legend(lines, words, loc="outside upper center", ncols=len(words))
    return path


def _draw(panel: Axes, name: str, accuracy: Mapping[str, float], energy: Sequence[float] | None) -> None:
    alone = "every layer cut, each to so many" if name == ALL_LAYERS else f"{name} cut, the others whole"
    panel.set_title(alone, loc="left", pad=3)
    ranks = sorted(map(int, accuracy))
    reached = [100 * accuracy[str(rank)] for rank in ranks]
    # Rank 0 has no place on a logarithmic axis: a line of its own.
    panel.axhline(reached[0], color="0.45", linewidth=0.8, linestyle=":", label="test accuracy with none kept")
    panel.plot(
        ranks[1:], reached[1:], color=INK[0], marker=MARKS[0], markersize=2.5, linewidth=1, label="test accuracy"
    )
    if energy is not None:
        held = [100 * energy[rank] for rank in ranks[1:]]
        panel.plot(
            ranks[1:],
            held,
            color=INK[1],
            marker=MARKS[1],
            markersize=2.5,
            linewidth=1,
            linestyle="--",
            label="share of the update's squared norm",
        )
    panel.set_ylim(0, 103)
    panel.grid(axis="y", color="0.9", linewidth=0.5)


def compact_page(out: Path, report: Report) -> Page:
    """The page, with its figure drawn."""
    page = Page(out, "The memory shuffled, sidestepped and compacted (remarks 3.1, 3.3 and 3.4)")
    page.paragraph(
        f"One network is trained as in the single task: {report['recipe']}; {report['steps']:,} updates on MNIST. It "
        f"is trained on {report['trained_on']}. The memory has {report['slots']:,} slots. A layer's key is its input "
        "with a 1 behind it, so that the bias is the weight's last column; an update is [W | b] at the end less "
        "[W | b] at the start, in float64."
    )
    page.show(claims_table(list(remarks(report))))
    page.heading(ORDER)
    page.paragraph(_order_words(report))
    page.show(_order_table(report))
    page.heading(SPAN)
    page.paragraph(_span(report))
    page.show(_span_table(report))
    page.heading(RANKS)
    page.paragraph(
        "The singular value decomposition of an update is a memory, too: its right singular vectors are keys, its left "
        "ones times the singular values are values, and with all of them every query gets the output that the slots "
        "give it. The table says how many directions hold a share of an update's squared Frobenius norm, and how many "
        "keep a share of the accuracy: the least number tried from which on the network never falls below it."
    )
    page.figure(
        draw_ranks(report_folder(out) / "ranks.png", report),
        "What the first directions of each update hold of it, and the accuracy that they keep (no figure of the "
        "paper; its remark 3.4).",
    )
    page.paragraph(_without(report))
    page.show(_ranks_table(report), _numbers_table(report))
    page.paragraph(_compact_words(report))
    page.heading("What one direction is made of")
    page.paragraph(_mixture(report))
    page.show(_mixture_table(report))
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _order_words(report: Report) -> str:
    order = report["order"]
    apart = max(max(layer["outputs"], layer["sums"]) for layer in order["layers"].values())
    rounding = "no more than" if apart <= SAME_ANSWER else "more than"
    return (
        f"{order['pairs']:,} keys and values, drawn from the whole training, were recorded again, once in the order of "
        f"the training and once shuffled, and {order['queries']:,} test images asked of both. Outputs and sums differ "
        f"by {apart:.1e} of their length at most: {rounding} float32's rounding brings, of the outputs and of the "
        "gradient factor that the recorder measures of each step. The paper's remark is that time shows only in keys "
        "and values, not in where they stand."
    )


def _order_table(report: Report) -> Table:
    return Table(
        "order",
        "The greatest relative difference between both orders over the queries, and how often the "
        f"{BEST} slots of greatest score are the same pairs.",
        ("layer", "outputs", "sums over labels", f"same {BEST} best"),
        [
            (name, _small(layer["outputs"]), _small(layer["sums"]), percent(layer["same_best"]))
            for name, layer in report["order"]["layers"].items()
        ],
    )


def _span(report: Report) -> str:
    span = report["span"]
    whole = [name for name, layer in span.items() if "query" not in layer]
    text = (
        "A query orthogonal to all keys draws no attention, and the layer answers W₀x and its bias. Such queries "
        "exist where the keys do not span the whole space: pixels that are the same in every training image, and "
        "hidden units that no training image wakes, leave directions out. Where some do, the query asked is the part "
        "of a test image's input that lies outside the span, of the image that has most of it, made as long as the "
        "input is; beside it stands that test image itself."
    )
    if whole:
        text += f" The keys of {listed(whole)} span everything: nothing there is orthogonal to all of them."
    return text


def _span_table(report: Report) -> Table:
    rows: list[list[Cell]] = []
    for name, layer in report["span"].items():
        query = layer.get("query", {})
        row: list[Cell] = [name, layer["width"], layer["rank"]]
        row += [percent(layer["outside_mean"], ".2g"), percent(layer["outside_most"], ".2g")]
        for key in ("added", "added_test_query", "bias_moved"):
            row.append(f"{query[key]:.1e}" if query else None)
        for key in ("greatest_weight", "greatest_weight_test_query"):
            row.append(f"{query[key]:.2g}" if query else None)
        rows.append(row)
    columns = [
        "layer",
        "width",
        "rank of the keys",
        "outside: mean",
        "outside: most",
        "added, query outside",
        "added, test image",
        "moved, the bias",
        "greatest weight, query outside",
        "greatest weight, test image",
    ]
    caption = (
        "The span of each layer's keys, to float32's precision; the share of the test inputs' squared length outside "
        "of it; and for the query outside and its test image, the length of what training adds beside the bias, over "
        "that of W₀x, how far the bias moved, over the same, and the greatest absolute attention weight over all slots."
    )
    return Table("span", caption, columns, rows)


def _ranks_table(report: Report) -> Table:
    shares = [percent(share, "g") for share in SHARES]
    columns = ["cut", "directions", *(f"{s} of the update" for s in shares), *(f"{s} of the accuracy" for s in shares)]
    rows: list[list[Cell]] = [
        [name, row["directions"], *row["holding_energy"].values(), *row["keeping_accuracy"].values()]
        for name, row in report["ranks"].items()
    ]
    most = max(row["directions"] for row in report["ranks"].values())
    rows.append([f"{ALL_LAYERS}, each to so many", most, *([None] * len(SHARES)), *report["ranks_all"].values()])
    caption = f"Directions that hold so much, of {report['slots']:,} slots."
    return Table("ranks", caption, columns, rows)


def _numbers_table(report: Report) -> Table:
    rows = [
        (name, *(row["numbers"][what] for what in ("slots", "directions", "weight")))
        for name, row in report["ranks"].items()
    ]
    return Table(
        "numbers",
        "Numbers stored: the keys and values of all slots, those of the directions that hold 99.9 % of the update, and "
        "the weight itself with its bias.",
        ("layer", "slots", "directions", "weight"),
        rows,
    )


def _without(report: Report) -> str:
    """What the accuracy is with nothing, and with the least fortunate number of directions, of one layer's update."""
    nothing, some = [], []
    for layer in report["ranks"]:
        by_rank = {int(rank): reached for rank, reached in report["accuracy"][layer].items()}
        least, worst = min((reached, rank) for rank, reached in by_rank.items() if rank)
        nothing.append(f"{percent(by_rank[0])} ({layer})")
        some.append(f"{percent(least)} ({worst} of {layer})")
    return (
        f"With nothing of one layer's update the network still recognises {listed(nothing)}; with some directions of "
        f"it, at the least {listed(some)}. Where the second is less, a few directions do worse than none: what an "
        "update does is what its terms come to together."
    )


def _compact_words(report: Report) -> str:
    compact = report["compact"]
    beside = "fewer" if compact["numbers"] < compact["weights_numbers"] else "more"
    return (
        f"With the directions that hold 99.9 % of each layer's update, {percent(compact['accuracy'], '.2f')} of the "
        f"test images are recognised, with all of them {percent(compact['accuracy_all'], '.2f')}. They are "
        f"{compact['numbers']:,} numbers, where the slots are {compact['slots_numbers']:,}: that these are more "
        "follows from the shapes, as a layer has no more directions than its narrower side has numbers. The weights "
        f"themselves are {compact['weights_numbers']:,}: the directions are {beside} than the layers need "
        "without any memory."
    )


def _mixture(report: Report) -> str:
    first = {name: own[0] for name, own in report["mixture"].items()}
    effective = listed([f"{layer['effective_slots']:,.0f} at {name}" for name, layer in first.items()])
    return (
        "What the compact memory loses is whom it speaks of. A singular value is a sum over all slots, s = sum of "
        "(u . e)(v . x): its key is no input that the layer ever saw, and its attention weight goes to no datapoint. "
        f"The first direction of each layer is spread over as many slots as this effective number says: {effective}, "
        f"of {report['slots']:,}. That is the sense in which the paper's form is the one to read: it is larger, and "
        "relates a test input to training datapoints."
    )


def _mixture_table(report: Report) -> Table:
    rows = [
        (
            name,
            number,
            f"{one['strength']:.4g}",
            f"{one['sum']:.4g}",
            f"{one['effective_slots']:,.0f}",
            f"{one['cancellation']:.1f}",
            percent(one["greatest_share"], ".3f"),
        )
        for name, own in report["mixture"].items()
        for number, one in enumerate(own, start=1)
    ]
    return Table(
        "mixture",
        "The first directions of each update: the singular value, the same added up over all slots, the effective "
        "number of slots (sum |c|)² / sum c², the cancellation sum |c| / |sum c|, and the greatest slot's share.",
        ("layer", "direction", "singular value", "sum over slots", "effective slots", "cancellation", "greatest slot"),
        rows,
    )


def _small(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"


COMPACT_RECIPE = Recipe(steps=5000)
"""The single task's."""

_PAIRS, _QUERIES = 12_800, 500
"""Slots that are recorded again in another order, and test images that are asked about them."""
_MIXED = 3
"""Directions of each layer that are taken apart into what each slot brought."""


def run_compact(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train one network on MNIST as the single task does; the memory is `out` itself, the page lies in `out/report`.

    `steps` updates (5,000 where none are given). Raises AlreadyExists where `out` holds something, and what
    `load_dataset` raises.
    """
    out, seed, start = assignment.out, assignment.first_seed, perf_counter()
    check_free(out)
    recipe = (recipe or COMPACT_RECIPE).with_steps(assignment.steps)
    dataset = load_dataset("mnist", assignment.data)
    order = batch_rows(dataset.split.trained, recipe, seed, part=0)
    record([dataset], batches(dataset, order), recipe, seed, out, progress=assignment.progress)
    report: Report = {
        "study": "compact",
        "command": assignment.command("compact"),
        "seed": seed,
        "steps": recipe.steps,
        "recipe": recipe.in_words(),
        "trained_on": dataset.trained_in_words(),
    }
    report |= _examine(out, dataset, recipe, seed, assignment.progress)
    report["claims"] = [claim.plain() for claim in remarks(report)]
    report["disk_bytes"] = bytes_on_disk(out)
    report["seconds"] = {"all": perf_counter() - start}
    compact_page(out, report).write(report)
    return report


def _examine(out: Path, dataset: Dataset, recipe: Recipe, seed: int, progress: Progress | None) -> Report:
    """Everything that the memory is asked. Its keys, gigabytes of them, are let go on return."""
    say, widths = or_silent(progress), recipe.widths(dataset)
    layers, query_set = layer_names(widths), query_set_name(dataset)
    with open_recorded(out) as memory:
        initial, final = memory.weights(at_step=0), memory.weights()
        updates = {layer: update_of(layer, initial, final) for layer in layers}
        slots = sum(memory.info().slots.values())
        say("asking the memory", 0, 3)
        report: Report = {
            "slots": slots,
            "verify": {name: reconstruction_report(reconstruction) for name, reconstruction in memory.verify().items()},
            "span": {layer: ask_span(memory, layer, query_set, with_bias(layer, initial)) for layer in layers},
        }
        say("asking the memory", 1, 3)
        report["mixture"] = {layer: mixture(memory, update, _MIXED) for layer, update in updates.items()}
        say("asking the memory", 2, 3)
        report["order"] = _shuffle(memory, query_set, slots, seed)
        say("asking the memory", 3, 3)
    return report | _truncate(updates, widths, dataset, slots, progress)


def _shuffle(memory: Engine, query_set: str, slots: int, seed: int) -> Report:
    """Pairs drawn from the whole training, as they stand and shuffled."""
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.choice(slots, size=min(_PAIRS, slots), replace=False))
    queries = {}
    for layer in memory.info().layers:
        of_query_set = memory.query_set(query_set, layer.name).queries
        assert of_query_set is not None, "the layer was named"
        queries[layer.name] = of_query_set[:_QUERIES]
    layers = compare_orders(pairs_of(memory, chosen), draw.permutation(len(chosen)), queries)
    return {"pairs": len(chosen), "queries": min(map(len, queries.values())), "layers": layers}


def _truncate(
    updates: dict[str, Update], widths: tuple[int, ...], dataset: Dataset, slots: int, progress: Progress | None
) -> Report:
    """Energies and accuracies by rank, and what the directions that hold most of each update come to together."""
    by_rank = accuracies_by_rank(updates, widths, dataset, progress)
    kept = {layer: update.directions_holding(SHARES[-1]) for layer, update in updates.items()}
    ranks = {layer: rank_report(update, by_rank[layer], slots) for layer, update in updates.items()}
    together = by_rank[ALL_LAYERS]
    return {
        "energy": {layer: update.energy().tolist() for layer, update in updates.items()},
        "accuracy": {name: {str(rank): reached for rank, reached in own.items()} for name, own in by_rank.items()},
        "ranks": ranks,
        "ranks_all": {str(share): rank_keeping(share, together) for share in SHARES},
        "compact": {
            "accuracy": accuracy_with(updates, kept, widths, dataset),
            "accuracy_all": together[max(together)],
            "numbers": sum(row["numbers"]["directions"] for row in ranks.values()),
            "slots_numbers": sum(row["numbers"]["slots"] for row in ranks.values()),
            "weights_numbers": sum(row["numbers"]["weight"] for row in ranks.values()),
        },
    }
