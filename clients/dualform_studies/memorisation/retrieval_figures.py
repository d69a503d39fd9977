"""Two levels of retrieval, drawn: training slots under the softmax over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform_studies.memorisation.facts import TOKENS, Facts
from dualform_studies.memorisation.network import HEADS, LENGTH
from dualform_studies.memorisation.retrieval import TwoLevels
from dualform_studies.memorisation.torus_figures import TOKEN_INK
from dualform_studies.pages.frame import new_figure

_PLACES = ("first", "second")


def draw_two_levels(path: Path, found: TwoLevels, facts: Facts) -> Path:
    """A row for each of the two tokens attended to: its scores with the training pairs, and what they come to."""
    true = int(facts.next_tokens[found.pair])
    margin, rival = found.margin(true)
    most = float(np.abs(margin).max())
    limit = float(np.abs(found.scores).max())
    with new_figure(path, 5.5) as figure:
        axes = figure.subplots(LENGTH, 1 + HEADS, sharex=True, sharey=True)
        for row, (place, token) in enumerate(zip(_PLACES, facts.names[found.pair], strict=True)):
            scores = _by_pair(axes[row, 0], found.scores[row], facts, "PuOr_r", limit)
            axes[row, 0].set_title(f"first level:\n{place} token, {token}")
            axes[row, 0].set_ylabel("training pair's first token")
            for head, panel in enumerate(axes[row, 1:]):
                added = _by_pair(panel, margin[row, head], facts, "RdBu_r", most)
                attention, total = found.pattern[head, row], round(float(margin[row, head].sum()), 1) + 0.0
                panel.set_title(f"head {head + 1}: {attention:.3f} to {token}\nin sum {total:+.1f} nats")
        for panel in axes[-1]:
            panel.set_xlabel("training pair's second token")
        style: Any = {"orientation": "horizontal", "aspect": 30, "pad": 0.03}
        left = figure.colorbar(scores, ax=axes[:, 0], **style | {"aspect": 10})
        left.formatter = EngFormatter(sep=" ")
        left.locator = MaxNLocator(3)
        left.update_ticks()
        left.set_label("attention weights summed\n" r"$\Sigma\,\alpha$ (no unit)")
        right = figure.colorbar(added, ax=axes[:, 1:], **style)
        right.set_label(f"added to the lead of {TOKENS[true]} over {TOKENS[rival]} (nats)")
    return path


def draw_scores(path: Path, scores: NDArray[np.float64], pair: str) -> Path:
    """float64[S, S, N, T] of `scores_over_training`: how each slot of the training scores with either token."""
    styles: tuple[Literal["-", "--"], ...] = ("-", "--")
    with new_figure(path, 3.3) as figure:
        axes = figure.subplots(1, LENGTH, sharey=True)
        for panel, place, asked, token in zip(axes, _PLACES, scores, pair, strict=True):
            for style, by_token in zip(styles, asked, strict=True):
                for ink, line in zip(TOKEN_INK, by_token, strict=True):
                    panel.plot(np.arange(1, len(line) + 1), line, style, color=ink, linewidth=1.3)
            panel.axhline(0, color="0.6", linewidth=0.6)
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.set_xlabel("training step")
            panel.set_title(f"scores with the {place} token, {token}")
        axes[0].set_ylabel("attention weight " r"$\alpha$ (no unit)")
        tokens = [Line2D([], [], color=ink, label=token) for ink, token in zip(TOKEN_INK, TOKENS, strict=True)]
        places = [
            Line2D([], [], color="0.3", linestyle=style, label=f"as {place} token")
            for style, place in zip(styles, _PLACES, strict=True)
        ]
        figure.legend(handles=[*tokens, *places], loc="outside lower center", ncols=7)
    return path


def _by_pair(panel: Axes, values: NDArray[np.float64], facts: Facts, colours: str, limit: float) -> Any:
    side = len(TOKENS)
    drawn = panel.imshow(values.reshape(side, side), cmap=colours, vmin=-limit, vmax=limit)
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for at, token in enumerate(facts.next_tokens.tolist()):
        panel.plot(at % side, at // side, "o", color=TOKEN_INK[token], markersize=3.2, markeredgecolor="white",
                   markeredgewidth=0.5)  # fmt: skip
    return drawn
