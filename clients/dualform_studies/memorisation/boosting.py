"""Boosted training of heads, and why head 1 forgets.

How curved the loss is along a training. Shapes: M networks, K numbers that learn.

Gradient descent with momentum m and learning rate r follows a quadratic only while its curvature is below
2 (1 + m) / r; beyond, it swings ever wider (Polyak, "Some methods of speeding up the convergence of iteration methods",
1964). The loss is no quadratic, but where its greatest curvature passes that bound, steps overshoot.

Boosted training: head one alone and longer, frozen, then head two, and so on; beside free training.

The text leaves open what happens to the embeddings while later heads learn. Both readings are run: "frozen" freezes
them with head one, so that each later head corrects a fixed prediction, as boosting proper does; "shared" lets them
go on, and freezes the earlier heads alone. Each is run by SGD, which the memory knows, and by Adam.

What makes head 1 forget, when it learns alone: the same trainings with other steps. Shapes: M networks, K moments.

A fall is a loss of 5 pairs or more between two moments at most a twentieth of the training apart, the first twentieth
left out, in which nothing is learned yet. Were falls a matter of what one head can hold, they would cost as much where
steps are small; were they a matter of steps that overshoot, the loss would have been more curved before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.functional import cross_entropy

from dualform_studies.assignment import Progress, counting
from dualform_studies.claims import more_often, plain_percent, sign_test
from dualform_studies.figures import INK, MARKS, PALETTE, new_figure
from dualform_studies.memorisation.heads import PAIRS
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    PROJECTIONS,
    AttentionOnly,
    Curve,
    Ensemble,
    Look,
    Optimize,
    Recipe,
    build_network,
    ensemble_of,
)
from dualform_studies.report import Table, in_fraction


def bound(lr: float, momentum: float) -> float:
    """The greatest curvature that gradient descent with momentum follows."""
    return 2 * (1 + momentum) / lr


def sharpness(
    base: AttentionOnly,
    parameters: dict[str, Tensor],
    pairs: Tensor,
    next_tokens: Tensor,
    heads: Tensor,
    learns: dict[str, Tensor],
) -> Tensor:
    """float64[M]: the greatest eigenvalue of the mean loss's Hessian in the numbers that learn.

    `parameters` are stacked, [M, ...]; `next_tokens` int64[M, P]; `heads` [1, H]; `learns` as training takes it.
    """
    exact = {name: p.double() for name, p in parameters.items()}
    masks = {name: mask.bool().expand(exact[name].shape[1:]) for name, mask in learns.items()}

    def loss(learned: Tensor, own: dict[str, Tensor], true: Tensor) -> Tensor:
        placed, start = {}, 0
        for name, p in own.items():
            count = int(masks[name].sum())
            places = masks[name].nonzero(as_tuple=True)
            placed[name] = p.index_put(places, learned[start : start + count])
            start += count
        return cross_entropy(functional_call(base, placed, (pairs, heads.double())), true)

    learned = torch.cat([p[:, masks[name]] for name, p in exact.items()], dim=1)
    curvature = vmap(jacrev(grad(loss)))(learned, exact, next_tokens)
    greatest: Tensor = torch.linalg.eigvalsh(curvature)[:, -1]
    return greatest


@dataclass(frozen=True)
class HeadTraining:
    """One way to train."""

    optimizer: Literal["SGD", "Adam"]
    heads: Literal["free", "shared", "frozen"]
    """All at once; or boosted, where the embeddings go on learning, or are frozen with head 1."""

    @property
    def words(self) -> str:
        return f"{HEADS_WORDS[self.heads]}, by {self.optimizer}"


HEADS_WORDS = {
    "free": "free, all heads at once",
    "shared": "boosted, embeddings go on learning",
    "frozen": "boosted, embeddings frozen with head 1",
}
WAYS = {
    "free": HeadTraining("SGD", "free"),
    "shared": HeadTraining("SGD", "shared"),
    "frozen": HeadTraining("SGD", "frozen"),
    "adam free": HeadTraining("Adam", "free"),
    "adam shared": HeadTraining("Adam", "shared"),
    "adam frozen": HeadTraining("Adam", "frozen"),
}


def train_ways(
    recipe: Recipe, seeds: Sequence[int], free: Ensemble, progress: Progress | None = None
) -> dict[str, Ensemble]:
    """The networks of each way to train, over the same seeds: one gives both facts and initial network.

    `free` are those that were trained freely by SGD.
    """
    trained = {"free": free}
    for name, way in WAYS.items():
        if name in trained:
            continue
        ensemble, optimize = ensemble_of(seeds), recipe.sgd if way.optimizer == "SGD" else recipe.adam
        if way.heads == "free":
            ensemble.train(recipe.steps, optimize, say=counting(progress, way.words, recipe.steps))
        else:
            boost(ensemble, recipe, optimize, way.heads == "shared", progress, way.words)
        trained[name] = ensemble
    return trained


def boost(
    ensemble: Ensemble, recipe: Recipe, optimize: Optimize, shared: bool, progress: Progress | None, words: str
) -> None:
    """Train head after head, each with the earlier ones speaking and frozen."""
    for head in range(ensemble.heads):
        train_head(
            ensemble, head, recipe.later_steps if head else recipe.steps, optimize, shared or head == 0,
            progress=progress, words=f"{words}: head {head + 1}",
        )  # fmt: skip


def train_head(
    ensemble: Ensemble, head: int, steps: int, optimize: Optimize, embeddings: bool, *,
    look: Look | None = None, progress: Progress | None, words: str,
) -> None:  # fmt: skip
    """Train one head, and the embeddings where `embeddings`; the later heads are silent."""
    ensemble.train(
        steps,
        optimize,
        heads=(torch.arange(ensemble.heads) <= head).float()[None],
        learns=learning(head, embeddings, ensemble.heads),
        look=look,
        say=counting(progress, words, steps),
    )


def learning(head: int, embeddings: bool, heads: int = HEADS) -> dict[str, Tensor]:
    """Masks of the numbers that learn while one head does, and the embeddings where `embeddings`."""
    rows = (torch.arange(heads * HEAD_WIDTH) // HEAD_WIDTH == head).float()
    masks = {f"{name}.weight": rows[:, None] for name in PROJECTIONS} | {"output.weight": rows[None, :]}
    outside = torch.tensor(float(embeddings))
    return masks | {f"{name}.weight": outside for name in ("word", "position", "unembedding")}


def boundaries(recipe: Recipe, heads: int = HEADS) -> list[int]:
    """The steps at which boosted training turns to the next head, or is at its end."""
    return [recipe.steps + head * recipe.later_steps for head in range(heads)]


FALL = 0.2
"""Of the pairs: 5 of 25."""
NEAR = 0.9
"""Of the optimizer's bound: the loss is looked at too seldom to catch it at its most curved."""
WINDOW = 1 / 20
"""Of the training: within so much of it a fall happens."""
_LOOKED_AT = 5
"""Of so many moments one is looked at for its curvature."""


@dataclass(frozen=True, eq=False)
class HeadOne:
    """Head 1 learning alone, one way."""

    words: str
    steps: int
    curve: Curve
    bound: float | None
    """The greatest curvature that the optimizer follows; None for Adam, whose steps are no multiple of the gradient."""
    looked_at: list[int]
    """Steps."""
    curvature: NDArray[np.float64]
    """float64[K, M], at these steps."""

    @property
    def fell(self) -> NDArray[np.bool_]:
        """bool[M]."""
        return np.array([fall is not None for fall in self.falls()])

    def falls(self) -> list[int | None]:
        """By network, when its first fall begins: the step of the last moment at which it still knew most."""
        return [self._fall(own) for own in np.stack(self.curve.accuracy).T]

    def _fall(self, accuracy: NDArray[np.float64]) -> int | None:
        moments = max(1, round(WINDOW * (len(accuracy) - 1)))
        for at in range(moments, len(accuracy)):
            window = accuracy[at : at + moments + 1]
            if window[0] - window.min() >= FALL - 1e-9:
                before = window[: int(window.argmin())]
                return self.curve.steps[at + int(np.flatnonzero(before == before.max())[-1])]
        return None

    @property
    def end(self) -> NDArray[np.float64]:
        """float64[M]: accuracy at the end."""
        return self.curve.accuracy[-1]

    @property
    def best(self) -> NDArray[np.float64]:
        """float64[M]: the greatest accuracy on the way."""
        return np.asarray(np.stack(self.curve.accuracy).max(axis=0))

    @property
    def lost(self) -> NDArray[np.float64]:
        """float64[M]: accuracy that a network had on the way and lost."""
        return self.best - self.end

    def before_fall(self) -> NDArray[np.float64]:
        """float64[M]: the greatest curvature up to the first fall, or to the end where there is none."""
        last = [self.steps if fall is None else fall for fall in self.falls()]
        before = np.array(self.looked_at)[:, None] <= np.array(last)
        return np.asarray(np.where(before, self.curvature, -np.inf).max(axis=0))

    def at_bound(self) -> NDArray[np.bool_]:
        """bool[M]: whether the curvature came near the optimizer's bound before the first fall, or at all."""
        assert self.bound is not None, "only gradient descent has a bound"
        return np.asarray(self.before_fall() >= NEAR * self.bound)


def train_head_one(recipe: Recipe, seeds: Sequence[int], progress: Progress | None = None) -> dict[str, HeadOne]:
    """The trainings of head 1, of the same networks and facts."""
    slow = replace(recipe, lr=recipe.lr / 4, adam_lr=recipe.adam_lr / 4)
    # The second moment is small where gradients are; a larger ε keeps it from making steps large there.
    damped = partial(torch.optim.Adam, lr=recipe.adam_lr, eps=1e-3)
    ways: dict[str, tuple[str, int, Optimize, float | None]] = {
        "SGD": (f"SGD, learning rate {recipe.lr:g}", recipe.steps, recipe.sgd, bound(recipe.lr, recipe.momentum)),
        "SGD, small": (
            f"SGD, {slow.lr:g}, four times the updates", 4 * recipe.steps, slow.sgd, bound(slow.lr, recipe.momentum),
        ),
        "Adam": (f"Adam, {recipe.adam_lr:g}, ε 1e-8", recipe.steps, recipe.adam, None),
        "Adam, ε": (f"Adam, {recipe.adam_lr:g}, ε 1e-3", recipe.steps, damped, None),
        "Adam, small": (f"Adam, {slow.adam_lr:g}, four times the updates", 4 * recipe.steps, slow.adam, None),
    }  # fmt: skip
    return {
        name: _train(seeds, words, steps, optimize, bound_of, progress)
        for name, (words, steps, optimize, bound_of) in ways.items()
    }


def _train(
    seeds: Sequence[int], words: str, steps: int, optimize: Optimize, bound_of: float | None, progress: Progress | None
) -> HeadOne:
    ensemble, base = ensemble_of(seeds), build_network(0).double()
    heads, learns = torch.eye(HEADS)[:1], learning(0, embeddings=True)
    looked_at: list[int] = []
    curvature: list[NDArray[np.float64]] = []
    noted = 0

    def look(step: int, parameters: dict[str, torch.Tensor]) -> None:
        nonlocal noted
        if noted % _LOOKED_AT == 0:
            looked_at.append(step)
            found = sharpness(base, parameters, ensemble.pairs, ensemble.next_tokens, heads, learns)
            curvature.append(found.numpy())
        noted += 1

    train_head(ensemble, 0, steps, optimize, True, look=look, progress=progress, words=f"head 1 alone, {words}")
    return HeadOne(words, steps, ensemble.curve, bound_of, looked_at, np.stack(curvature))


LEVEL = 0.05
"""Greatest p at which a statement is shown."""
FALL_IN_WORDS = f"a loss of {round(FALL * PAIRS)} pairs or more within {in_fraction(WINDOW)} of the training"


@dataclass(frozen=True)
class Statement:
    """A statement and what came of it."""

    statement: str
    ours: str
    test: str
    p: float

    @property
    def shown(self) -> bool:
        return self.p <= LEVEL


def small_steps(found: Mapping[str, HeadOne]) -> Statement:
    """That steps of a quarter lose less, network by network."""
    sgd, small = found["SGD"], found["SGD, small"]
    lost, lost_small = (PAIRS * float(one.lost.mean()) for one in (sgd, small))
    return Statement(
        "Smaller steps lose less of what head 1 had learned.",
        f"{lost:.1f} pairs lost with SGD's steps, {lost_small:.1f} with a quarter of them (means); falls in "
        f"{_of(sgd.fell)} and {_of(small.fell)} seeds",
        "one-sided sign test over the seeds",
        sign_test(sgd.lost - small.lost),
    )


def curved_before(found: Mapping[str, HeadOne]) -> Statement:
    """That the loss of the networks that fall had come nearer to what SGD follows than that of the others."""
    sgd = found["SGD"]
    near = sgd.at_bound()
    fell, others = near[sgd.fell], near[~sgd.fell]
    return Statement(
        f"Before a fall, the loss has come within {plain_percent(1 - NEAR)} of the curvature that SGD follows.",
        f"{_of(fell)} seeds that fell had, up to their fall, and {_of(others)} of the others, up to their end",
        "Fisher's exact test, one-sided, of fallen seeds against others",
        more_often(fell, others),
    )


def statements_table(statements: Sequence[Statement]) -> Table:
    return Table(
        "falls-statements",
        "Two statements of ours about falls, of which the text says nothing. A statement is shown where p is at most "
        f"{LEVEL:g}.",
        ("statement", "found", "test", "p", "shown"),
        [(one.statement, one.ours, one.test, f"{one.p:.2g}", "yes" if one.shown else "no") for one in statements],
    )


def _of(counted: np.ndarray) -> str:
    return f"{int(counted.sum())} of {len(counted)}"


_LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
_AROUND = 15
"""Percent of the training before and after a fall."""
_BOUNDED = ("SGD", "SGD, small")
"""The ways that follow curvatures up to a bound."""


def draw_falls(path: Path, found: Mapping[str, HeadOne]) -> Path:
    """Above all ways to train, as means over seeds, and how curved the loss grew in each seed; below the seeds that
    fall by SGD, moved so that they fall at 0."""
    with new_figure(path, 6.4) as figure:
        (means, curved), (accuracies, curvatures) = figure.subplots(2, 2)
        for at, one in enumerate(found.values()):
            accuracy = 100 * np.stack(one.curve.accuracy).mean(axis=1)
            means.plot(
                _percent(one.curve.steps, one), accuracy, color=PALETTE[at], linestyle=_LINES[at], linewidth=1.4,
                marker=("o", "s", "^", "D", "v")[at], markevery=(6 * at, 40), markersize=4, label=one.words,
            )  # fmt: skip
        means.set_xlabel("part of the training (%)")
        means.set_ylabel("accuracy of head 1 over 25 pairs (%)")
        means.set_title("mean over all seeds")
        means.legend(loc="lower right", fontsize=6.5)
        _draw_curved(curved, found)
        for at, name in enumerate(_BOUNDED):
            one = found[name]
            fell = np.flatnonzero(one.fell)
            accuracy, curvature = 100 * np.stack(one.curve.accuracy)[:, fell], one.curvature[:, fell]
            falls = np.array([fall for fall in one.falls() if fall is not None])
            _around(accuracies, _percent(one.curve.steps, one), accuracy, _percent(falls, one), at, one.words)
            assert one.bound is not None, "gradient descent has a bound"
            _around(curvatures, _percent(one.looked_at, one), curvature / one.bound, _percent(falls, one), at, "")
        accuracies.set_title("seeds that fall")
        accuracies.set_ylabel("accuracy of head 1 over 25 pairs (%)")
        curvatures.axhline(1, color="black", linewidth=0.8)
        curvatures.set_title("seeds that fall")
        curvatures.set_ylabel("greatest curvature of the loss,\nover what SGD follows")
        curvatures.set_ylim(bottom=0)
        for panel in (means, accuracies):
            panel.set_ylim(0, 104)
        for panel in (accuracies, curvatures):
            panel.set_xlabel("part of the training from the fall on (%)")
            panel.set_xlim(-_AROUND, _AROUND)
            panel.axvline(0, color="0.6", linewidth=0.7, linestyle=":")
        if accuracies.get_legend_handles_labels()[0]:
            accuracies.legend(loc="lower left", fontsize=6.5)
    return path


def _draw_curved(panel: Axes, found: Mapping[str, HeadOne]) -> None:
    """Each seed's greatest curvature, of those that fall up to the fall, and of the others up to the end."""
    names: list[str] = []
    for at, name in enumerate(_BOUNDED):
        one = found[name]
        assert one.bound is not None, "gradient descent has a bound"
        greatest = one.before_fall() / one.bound
        for chosen, words in ((one.fell, "fall"), (~one.fell, "do not")):
            spread = 0.5 * (np.arange(chosen.sum()) - (chosen.sum() - 1) / 2) / max(1, len(chosen))
            panel.plot(
                len(names) + spread, greatest[chosen], linestyle="none", marker=MARKS[at], color=PALETTE[at],
                markersize=4, markerfacecolor=PALETTE[at] if words == "fall" else "white",
            )  # fmt: skip
            names.append(f"{name}:\n{chosen.sum()} {words}")
    panel.axhline(1, color="black", linewidth=0.8)
    panel.axhline(NEAR, color="0.6", linewidth=0.7, linestyle=":")
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("greatest curvature of the loss,\nover what SGD follows")
    panel.set_title("each seed, up to its fall or its end")


def _percent(steps: object, one: HeadOne) -> NDArray[np.float64]:
    return np.asarray(100 * np.asarray(steps, dtype=np.float64) / one.steps)


def _around(
    panel: Axes,
    moments: NDArray[np.float64],
    values: NDArray[np.float64],
    falls: NDArray[np.float64],
    at: int,
    words: str,
) -> None:
    """Each seed thin, float64[K, M] at K moments, and their median bold, where any of them is known."""
    grid = np.linspace(-_AROUND, _AROUND, 61)
    moved = []
    for own, fall in zip(values.T, falls, strict=True):
        panel.plot(moments - fall, own, color=PALETTE[at], linewidth=0.5, alpha=0.35)
        moved.append(np.interp(grid, moments - fall, own, left=np.nan, right=np.nan))
    if moved:
        seen = np.isfinite(moved).any(axis=0)
        panel.plot(
            grid[seen], np.nanmedian(np.stack(moved)[:, seen], axis=0), color=PALETTE[at], linestyle=_LINES[at],
            linewidth=1.8, marker=MARKS[at], markevery=10, markersize=4, label=words,
        )  # fmt: skip


_LINE_STYLES: Any = {"free": "-", "shared": (0, (5, 1.5)), "frozen": (0, (1, 1))}
_KINDS = tuple(_LINE_STYLES)


def draw_ways(path: Path, trained: Mapping[str, Ensemble], recipe: Recipe) -> Path:
    """By optimizer, the median over seeds with its quartiles; and every seed at its end."""
    with new_figure(path, 3.6) as figure:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1), sharey=True)
        for panel, optimizer in ((left, "SGD"), (middle, "Adam")):
            for way, ensemble in _trainings_of(trained, optimizer):
                _band(panel, ensemble.curve, way)
            for head, step in enumerate([0, *boundaries(recipe)[:-1]], start=1):
                panel.axvline(step, color="0.6", linewidth=0.7, linestyle=":")
                panel.text(step, 1.01, f"head {head}", transform=panel.get_xaxis_transform(), fontsize=7)
            panel.set_title(f"by {optimizer}", pad=14)
            panel.set_xlabel("updates (above: the head\nthat boosted training is at)")
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        _ends(right, trained)
        left.set_ylabel("accuracy over the 25 pairs (%)")
        left.set_ylim(0, 104)
        handles = [
            Line2D([], [], color=INK[at], linestyle=_LINE_STYLES[kind], marker=MARKS[at], markersize=4, label=words)
            for at, (kind, words) in enumerate(HEADS_WORDS.items())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return path


def _trainings_of(trained: Mapping[str, Ensemble], optimizer: str) -> list[tuple[HeadTraining, Ensemble]]:
    return [(way, trained[name]) for name, way in WAYS.items() if way.optimizer == optimizer]


def _band(panel: Axes, curve: Curve, way: HeadTraining) -> None:
    at = _KINDS.index(way.heads)
    low, middle, high = quartiles(curve.accuracy)
    panel.fill_between(curve.steps, low, high, color=INK[at], alpha=0.16, linewidth=0)
    panel.plot(
        curve.steps, middle, color=INK[at], linestyle=_LINE_STYLES[way.heads], linewidth=1.5,
        marker=MARKS[at], markevery=(8 * at, 40), markersize=4,
    )  # fmt: skip


def _ends(panel: Axes, trained: Mapping[str, Ensemble]) -> None:
    for place, (name, way) in enumerate(WAYS.items()):
        at = _KINDS.index(way.heads)
        accuracy = trained[name].curve.accuracy[-1]
        ends, counts = np.unique(np.round(100 * accuracy), return_counts=True)
        for end, count in zip(ends, counts, strict=True):
            spread = min(0.09, 0.8 / count)
            panel.scatter(
                place + spread * (np.arange(count) - (count - 1) / 2), np.full(count, end),
                s=11, marker=MARKS[at], color=INK[at], alpha=0.75, linewidths=0,
            )  # fmt: skip
        panel.hlines(100 * np.median(accuracy), place - 0.45, place + 0.45, color="black", linewidth=1.2)
    panel.set_xticks([1, 4], ["SGD", "Adam"])
    panel.axvline(2.5, color="0.8", linewidth=0.7)
    panel.tick_params(axis="x", length=0)
    panel.set_title("each seed at the end,\nand the median", pad=3)


def quartiles(accuracy: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """float64[3, K]: first quartile, median and third over the networks, in percent, of K times float64[M]."""
    return np.asarray(100 * np.percentile(np.stack(accuracy), (25, 50, 75), axis=1))


def ways(trained: Mapping[str, Ensemble]) -> Table:
    rows = []
    for name, way in WAYS.items():
        curve = trained[name].curve
        accuracy, loss = curve.accuracy[-1], curve.loss[-1]
        free = trained["free" if way.optimizer == "SGD" else "adam free"].curve.accuracy[-1]
        rows.append(
            (
                way.words, curve.steps[-1], f"{100 * accuracy.mean():.1f} %",
                " / ".join(f"{100 * part:.0f}" for part in np.percentile(accuracy, (25, 50, 75))) + " %",
                f"{100 * accuracy.min():.0f} %", f"{int((accuracy > 0.99).sum())} of {len(accuracy)}",
                "-" if way.heads == "free" else f"{(free > accuracy).sum()} : {(free < accuracy).sum()}",
                "-" if way.heads == "free" else f"{sign_test(free - accuracy):.2g}",
                f"{np.median(loss):.2g}",
            )
        )  # fmt: skip
    columns = (
        "training", "updates", "accuracy, mean", "quartiles", "worst seed", "seeds that know all 25",
        "seeds where free knows more : less", "p (sign test)", "loss in nats, median",
    )  # fmt: skip
    return Table("ways", "Free and boosted training, over the same seeds.", columns, rows)


def falls(found: Mapping[str, HeadOne]) -> Table:
    rows = []
    for one in found.values():
        steps = [fall for fall in one.falls() if fall is not None]
        rows.append(
            (
                one.words, one.steps, f"{int(one.fell.sum())} of {len(one.fell)}",
                f"{np.median(steps):,.0f}" if steps else "-", f"{100 * one.best.mean():.1f} %",
                f"{100 * one.end.mean():.1f} %", "-" if one.bound is None else f"{one.bound:.0f}",
                "-" if one.bound is None else f"{int(one.at_bound()[one.fell].sum())} of {int(one.fell.sum())}",
                "-" if one.bound is None else f"{int(one.at_bound()[~one.fell].sum())} of {int((~one.fell).sum())}",
            )
        )  # fmt: skip
    columns = (
        "head 1 alone, by", "updates", "seeds that fall", "at update, median", "best accuracy on the way, mean",
        "at the end, mean", "curvature that it follows", "falls near it", "no fall, but near it",
    )  # fmt: skip
    return Table(
        "falls",
        f"Head 1 learning alone: the same networks, with other steps. A fall is {FALL_IN_WORDS}. The last columns "
        f"count seeds of which the loss came within {plain_percent(1 - NEAR)} of the curvature that gradient descent "
        "with momentum follows, up to the fall or to the end.",
        columns,
        rows,
    )
