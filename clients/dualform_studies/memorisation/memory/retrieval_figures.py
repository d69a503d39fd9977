"""Two levels of retrieval, drawn: training slots under the softmax over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from dualform_studies.memorisation.memory.retrieval import TwoLevels
from dualform_studies.memorisation.torus.figures import TOKEN_INK, TOKEN_MARKS, token_handles
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import HEADS, LENGTH
from dualform_studies.pages.frame import new_figure

_PLACES = ("first", "second")


def draw_two_levels(path: Path, found: TwoLevels, facts: Facts) -> Path:
    """A row for each of the two tokens: its scores with the training pairs, and what their values have to say of it.

    A head lets through as much of that as it attends to the token: the product is in the titles.
    """
    true = int(facts.next_tokens[found.pair])
    margin, rival = found.margin(true)
    offered = found.offered[..., true] - found.offered[..., rival]
    most = float(np.abs(offered).max())
    limit = float(np.abs(found.scores).max())
    with new_figure(path, 5.7, shades=True) as figure:
        axes = figure.subplots(LENGTH, 1 + HEADS, sharex=True, sharey=True)
        for row, (place, token) in enumerate(zip(_PLACES, facts.names[found.pair], strict=True)):
            scores = _by_pair(axes[row, 0], found.scores[row], facts, "PuOr_r", limit)
            axes[row, 0].set_title(f"first level:\n{place} token, {token}")
            axes[row, 0].set_ylabel("training pair's first token")
            for head, panel in enumerate(axes[row, 1:]):
                drawn = _by_pair(panel, offered[row, head], facts, "RdBu_r", most)
                says, through = (_rounded(one[row, head].sum()) for one in (offered, margin))
                attention = found.pattern[head, row]
                panel.set_title(f"head {head + 1}, {token}: {says:+.1f} nats,\ntimes {attention:.3f} = {through:+.1f}")
        for panel in axes[-1]:
            panel.set_xlabel("training pair's second token")
        style: Any = {"orientation": "horizontal", "aspect": 30, "pad": 0.03}
        left = figure.colorbar(scores, ax=axes[:, 0], **style | {"aspect": 10})
        left.formatter = EngFormatter(sep=" ")
        left.locator = MaxNLocator(3)
        left.update_ticks()
        left.set_label("attention weights summed\n" r"$\Sigma\,\alpha$")
        right = figure.colorbar(drawn, ax=axes[:, 1:], **style)
        right.set_label(f"lead of {TOKENS[true]} over {TOKENS[rival]} that values offer, before attention (nats)")
        figure.legend(handles=token_handles(), loc="outside lower center", ncols=len(TOKENS), handletextpad=0.2)
    return path


def draw_scores(path: Path, scores: NDArray[np.float64], pair: str) -> Path:
    """float64[S, S, N, T] of `scores_over_training`: how each slot of the training scores with either token."""
    styles: tuple[Literal["-", "--"], ...] = ("-", "--")
    with new_figure(path, 3.3) as figure:
        axes = figure.subplots(1, LENGTH, sharey=True)
        for panel, place, asked, token in zip(axes, _PLACES, scores, pair, strict=True):
            for style, by_token in zip(styles, asked, strict=True):
                for ink, mark, line in zip(TOKEN_INK, TOKEN_MARKS, by_token, strict=True):
                    panel.plot(
                        np.arange(1, len(line) + 1), line, style, color=ink, linewidth=1.3, marker=mark,
                        markevery=_marked(len(line)), markersize=4,
                    )  # fmt: skip
            panel.axhline(0, color="0.6", linewidth=0.6)
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.set_xlabel("training step, the first being 1")
            panel.set_title(f"scores with the {place} token, {token}")
        axes[0].set_ylabel("attention weight " r"$\alpha$")
        tokens = [
            Line2D([], [], color=ink, marker=mark, markersize=4, label=token)
            for ink, mark, token in zip(TOKEN_INK, TOKEN_MARKS, TOKENS, strict=True)
        ]
        places = [
            Line2D([], [], color="0.3", linestyle=style, label=f"as {place} token")
            for style, place in zip(styles, _PLACES, strict=True)
        ]
        figure.legend(handles=[*tokens, *places], loc="outside lower center", ncols=7)
    return path


def _marked(steps: int) -> list[int]:
    """Where marks stand on a line over so many steps, on a logarithmic axis."""
    return sorted({round(at) - 1 for at in np.geomspace(1, steps, 7)})


def _rounded(number: float) -> float:
    """To one decimal; never minus zero."""
    return round(float(number), 1) + 0.0


def _by_pair(panel: Axes, values: NDArray[np.float64], facts: Facts, colours: str, limit: float) -> Any:
    side = len(TOKENS)
    drawn = panel.imshow(values.reshape(side, side), cmap=colours, vmin=-limit, vmax=limit)
    panel.set_xticks(range(side), TOKENS)
    panel.set_yticks(range(side), TOKENS)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    for at, token in enumerate(facts.next_tokens.tolist()):
        panel.plot(at % side, at // side, TOKEN_MARKS[token], color=TOKEN_INK[token], markersize=4,
                   markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    return drawn
