"""Figures and chapter of training pairs left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.assignment import Progress
from dualform_studies.figures import INK, new_figure
from dualform_studies.memorisation import retrieval
from dualform_studies.memorisation.left_out import Omission, Sweep, sweep_last
from dualform_studies.memorisation.torus import (
    ClassMap,
    class_map,
    name_angles,
    paint,
    place_pairs,
    token_handles,
    word_angles,
)
from dualform_studies.memorisation.transformer import TOKENS, AttentionOnly, Facts, Recipe
from dualform_studies.report import Page, Report, report_folder

_SHOWN = {
    "value": "value masked",
    "query and key": "query and key masked",
    "projections": "all three masked",
    "retrained": "retrained without it",
}


def draw_pairs(path: Path, found: Sequence[Omission], facts: Facts) -> Path:
    """For each pair left out: how many of the other 24 are still known; framed where the pair itself is."""
    singles = [one for one in found if one.pairs.sum() == 1][: len(facts)]
    right = [one.right(facts) for one in singles]
    with new_figure(path, 2.35) as figure:
        axes = figure.subplots(1, len(_SHOWN), sharey=True)
        for panel, (name, title) in zip(axes, _SHOWN.items(), strict=True):
            others = [int(known[name][~one.pairs].sum()) for one, known in zip(singles, right, strict=True)]
            itself = [bool(known[name][one.pairs].all()) for one, known in zip(singles, right, strict=True)]
            drawn = grid_of_pairs(panel, others, itself)
            panel.set_title(title)
            panel.set_xlabel("second token of the pair")
        axes[0].set_ylabel("first token of the pair")
        figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.01).set_label("other pairs still known\n(of 24)")
    return path


def draw_masked_maps(
    path: Path,
    maps: Mapping[str, Mapping[str, tuple[ClassMap, NDArray[np.float64], int]]],
    facts: Facts,
) -> Path:
    """Class maps: a row for what is left out, a column for where, and by both the map, the words' angles, and how many
    pairs are known."""
    rows = len(maps)
    with new_figure(path, 2.05 * rows + 0.75) as figure:
        columns = len(next(iter(maps.values())))
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for row, (left_out, by_scope) in enumerate(maps.items()):
            for at, (scope, (drawn, angles, known)) in enumerate(by_scope.items()):
                panel = axes[row, at]
                paint(panel, drawn, angles, size=7.5)
                place_pairs(panel, facts, angles, size=14)
                name_angles(panel, up=False, along=row == rows - 1)
                panel.set_title(
                    f"{scope}\n{known} of {len(facts)} known" if row == 0 else f"{known} of {len(facts)} known"
                )
            axes[row, 0].set_ylabel(f"without {left_out}\n\nsecond token's angle (°)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_sweep(path: Path, sweep: Sweep) -> Path:
    with new_figure(path, 2.9) as figure:
        panel = figure.subplots()
        others = 100 * sweep.others
        low, middle, high = np.percentile(others, (25, 50, 75), axis=1)
        for last, each in zip(sweep.last, others, strict=True):
            panel.plot(np.full(len(each), last), each, "_", color=INK[0], alpha=0.5, markersize=5)
        panel.fill_between(sweep.last, low, high, color=INK[0], alpha=0.15, linewidth=0)
        panel.plot(
            sweep.last, middle, "o-", color=INK[0], markersize=4,
            label="the other 24 pairs: median over the pairs left out, quartiles, and each (dashes)",
        )  # fmt: skip
        panel.plot(
            sweep.last,
            100 * sweep.itself.mean(axis=1),
            "s--",
            color=INK[1],
            markersize=4,
            label="the pair left out, mean",
        )
        panel.set_xlabel("last steps whose slots of one pair are left out of query, key and value")
        panel.set_ylabel("still known (%)")
        panel.set_ylim(-3, 104)
        panel.legend(loc="lower left")
    return path


def grid_of_pairs(panel: Axes, others: Sequence[int], itself: Sequence[bool]) -> AxesImage:
    """By pair left out, how many of the other 24 are known; framed where the pair itself is."""
    side = len(TOKENS)
    drawn = panel.imshow(np.reshape(others, (side, side)), cmap="viridis", vmin=0, vmax=24)
    for at, (number, known) in enumerate(zip(others, itself, strict=True)):
        x, y = at % side, at // side
        panel.text(x, y, str(number), ha="center", va="center", fontsize=8, color="white" if number < 15 else "black")
        if known:
            # White within black: seen on every colour of the map.
            for ink, width in (("black", 2.4), ("white", 1.0)):
                panel.add_patch(Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, color=ink, linewidth=width))
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return drawn


_MAPPED = {
    "value": "values masked",
    "projections": "all projections masked",
    "whole network": "whole network masked",
    "retrained": "retrained without it",
}
"""Networks whose class maps are drawn, with the words that head their columns."""


def mask_chapter(
    page: Page, memory: Engine, found: Sequence[Omission], network: AttentionOnly, facts: Facts, recipe: Recipe,
    progress: Progress | None,
) -> Report:  # fmt: skip
    """Pairs and classes left out of the sum, and of the training: `found`, pairs first."""
    folder = report_folder(page.run)
    means = retrieval.left_out_means(found, facts)
    single, chance = means["pairs"], 100 / len(TOKENS)
    page.heading("What if a pair had been left out")
    page.paragraph(
        "A mask takes the terms of a pair out of the sum as this training left it. It is no retraining: without the "
        "pair every later term would have been another. Beside each mask stands the network that was trained without "
        "the pair, from the same start. On average over the 25 pairs, masking one in query, key and value leaves "
        f"{single['projections']['others']:.0f} % of the other pairs known, in value alone "
        f"{single['value']['others']:.0f} %, in query and key {single['query and key']['others']:.0f} %, in the whole "
        f"network {single['whole network']['others']:.0f} %; of the network retrained without it "
        f"{single['retrained']['others']:.0f} %. The pair left out is itself still known in "
        f"{single['projections']['left_out']:.0f} % of the cases when masked in the projections, and guessed in "
        f"{single['retrained']['left_out']:.0f} % by the network that never saw it; chance is {chance:.0f} %."
    )
    page.figure(
        draw_pairs(folder / "masked-pairs.png", found, facts),
        "For each pair left out, how many of the other 24 are still known; framed where the pair itself is.",
    )
    cancellation = float(np.median([one.cancellation["value"] for one in found[: len(facts)]]))
    overall = memory.cancellation(where="step < 0", layer="value")["value"]
    shares = np.array([one.share["value"] for one in found[: len(facts)]])
    share, correlation = float(np.median(shares)), _correlation(shares, found[: len(facts)], facts)
    page.paragraph(
        about_cancellation(cancellation, overall, share)
        + " Over the pairs, the logarithm of this share and the number of other pairs that "
        "are still known when the values of a pair are masked have a correlation of "
        f"{correlation:.2f}."
    )
    _masked_maps(page, found, network, facts, recipe)
    page.show(retrieval.left_out(found, facts))
    page.heading("What if only its last steps had been left out")
    sweep = sweep_last(memory, facts, recipe, progress)
    half = int(np.abs(np.array(sweep.last) - recipe.steps / 2).argmin())
    page.paragraph(
        "All that came later was learned with what a pair taught early in place; what it taught late has been built "
        f"upon for fewer steps. With the slots of its last {sweep.last[half]:,} steps left out, "
        f"{100 * sweep.others[half].mean():.0f} % of the other pairs are still known on average, and "
        f"{100 * sweep.itself[half].mean():.0f} % of the pairs left out."
    )
    page.figure(
        draw_sweep(folder / "last-steps.png", sweep),
        f"The slots of one pair in the last steps left out of query, key and value, up to all {recipe.steps:,} steps.",
    )
    return {
        "means": means,
        "median_cancellation_value": cancellation,
        "median_share_value": share,
        "correlation_of_share": correlation,
        "last_steps": {str(n): 100 * float(each.mean()) for n, each in zip(sweep.last, sweep.others, strict=True)},
    }


def about_cancellation(cancellation: float, overall: float, share: float) -> str:
    """Whether a pair's terms cancel each other or those of other pairs, by the medians over the pairs, and overall."""
    return (
        f"In the value projection, the terms of one pair have a cancellation of {cancellation:.1f} (median), that is, "
        f"their norms add up to so many times the norm of their sum; all slots together have {overall:.1f}. The sum of "
        f"one pair's terms alone is {share:.1f} times as large as all that training added (median). "
    ) + (
        "So the terms of a pair cancel those of other pairs more than each other: a small cancellation figure of the "
        "part left out is no promise that the rest stands on its own."
        if overall > cancellation and share > 1
        else "So the terms of a pair do not cancel those of other pairs more than each other here."
    )


def _correlation(shares: NDArray[np.float64], found: Sequence[Omission], facts: Facts) -> float:
    """Of the logarithm of a pair's share with how many other pairs its mask on the values leaves known; 0 for none."""
    known = np.array([one.right(facts)["value"][~one.pairs].sum() for one in found])
    return float(np.corrcoef(np.log(shares), known)[0, 1]) if np.ptp(known) and np.ptp(shares) else 0.0


def _masked_maps(page: Page, found: Sequence[Omission], network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """The class maps when the pair that is missed most is left out, and when the largest class is."""
    pairs, classes = found[: len(facts)], found[len(facts) :]
    worst = min(pairs, key=lambda one: int(one.right(facts)["projections"].sum()))
    largest = max(classes, key=lambda one: int(one.pairs.sum()))
    maps = {
        one.name: {
            words: (class_map(changed, recipe.grid), word_angles(changed), facts_known(changed, facts))
            for scope, words in _MAPPED.items()
            for changed in (one.networks[scope],)
        }
        for one in (worst, largest)
    }
    page.figure(
        draw_masked_maps(report_folder(page.run) / "masked-maps.png", maps, facts),
        f"Class maps with something left out: above the pair `{worst.name}`, whose mask on the projections costs most, "
        f"below {largest.name}, all pairs that give it. Masked in the value projection, in query, key and value, or in "
        "the whole network, embeddings included; and the network trained without it.",
    )


def facts_known(network: AttentionOnly, facts: Facts) -> int:
    return int(facts.right(network(facts.pairs).detach()).sum())
