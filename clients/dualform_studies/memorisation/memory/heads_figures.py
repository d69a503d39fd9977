"""The memory of each head, drawn: what it attends to, and what changes when a pair is masked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from numpy.typing import NDArray

from dualform_studies.memorisation.memory.heads import HeadMemory, MaskedHeads
from dualform_studies.memorisation.memory.mask_figures import grid_of_pairs
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import HEADS
from dualform_studies.pages.frame import new_figure


def draw_attention_by_pair(path: Path, found: HeadMemory, facts: Facts) -> Path:
    """Above what each head's memory attends to, below what this adds to the lead of the true next token."""
    rows: Sequence[tuple[NDArray[np.float64], str, str]] = (
        (found.attention, "PuOr_r", "attention weights, summed\nby training pair"),
        (found.lead, "RdBu_r", "added to the lead of the\ntrue next token (nats)"),
    )
    with new_figure(path, 5.6) as figure:
        axes = figure.subplots(2, HEADS, sharex=True, sharey=True)
        for panels, (values, colours, label) in zip(axes, rows, strict=True):
            limit = float(np.abs(values).max())
            # Leads range over orders of magnitude: equal steps of colour are equal factors beyond a hundredth.
            style: Any = {"cmap": colours, "norm": SymLogNorm(limit / 100, vmin=-limit, vmax=limit)}
            for head, panel in enumerate(panels):
                drawn = _by_pairs(panel, values[head], **style)
                panel.set_title(f"head {head + 1}")
            panels[0].set_ylabel("pair asked about")
            bar = figure.colorbar(drawn, ax=panels, shrink=0.85, pad=0.01)
            bar.set_label(label)
            decades = 10.0 ** np.arange(np.floor(np.log10(limit)) - 1, np.log10(limit))
            bar.set_ticks(
                [*-decades[::-1], 0, *decades], labels=[f"{tick:g}" for tick in (*-decades[::-1], 0, *decades)]
            )
            bar.minorticks_off()
        for panel in axes[-1]:
            panel.set_xlabel("training pair")
    return path


def draw_shifts(path: Path, found: HeadMemory, masked: MaskedHeads, lost: NDArray[np.bool_]) -> Path:
    """How each head's attention to the first token moves with a pair masked in query and key; a cross at each pair
    asked about that is lost, bool[P, P]."""
    shift = masked.pattern[..., 0] - found.pattern[None, :, :, 0]
    crosses = np.argwhere(lost)
    with new_figure(path, 3.1) as figure:
        axes = figure.subplots(1, HEADS, sharex=True, sharey=True)
        for head, panel in enumerate(axes):
            drawn = _by_pairs(panel, shift[:, :, head], cmap="RdBu_r", vmin=-1, vmax=1)
            panel.plot(crosses[:, 1], crosses[:, 0], "x", color="black", markersize=2.6, markeredgewidth=0.8)
            panel.set_title(f"head {head + 1}")
            panel.set_xlabel("pair asked about")
        axes[0].set_ylabel("training pair masked")
        figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.01).set_label("change of the attention\nto the first token")
    return path


def draw_masked_heads(path: Path, found: HeadMemory, masked: MaskedHeads) -> Path:
    """For each pair masked in one head alone: how many of the other pairs are still known, and whether it is itself."""
    own, known = np.eye(len(masked.known), dtype=np.bool_), masked.known & found.known
    with new_figure(path, 2.7) as figure:
        axes = figure.subplots(1, HEADS, sharey=True)
        for head, panel in enumerate(axes):
            others, itself = (known[:, head] & ~own).sum(axis=1), known[:, head][own]
            drawn = grid_of_pairs(panel, others.tolist(), itself.tolist())
            panel.set_title(f"masked in head {head + 1} alone")
            panel.set_xlabel("second token of the pair")
        axes[0].set_ylabel("first token of the pair")
        figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.01).set_label("other pairs still known\n(of 24)")
    return path


def _by_pairs(panel: Axes, values: NDArray[np.float64], **style: Any) -> Any:
    """Rows and columns of 25 pairs, in groups of their first token; a frame around each pair with itself."""
    drawn = panel.imshow(values, interpolation="nearest", **style)
    side = len(TOKENS)
    borders = np.arange(1, side) * side - 0.5
    panel.hlines(borders, -0.5, side * side - 0.5, color="0.4", linewidth=0.4)
    panel.vlines(borders, -0.5, side * side - 0.5, color="0.4", linewidth=0.4)
    middles, names = np.arange(side) * side + 2, [f"{token}." for token in TOKENS]
    panel.set_xticks(middles, names)
    panel.set_yticks(middles, names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return drawn
