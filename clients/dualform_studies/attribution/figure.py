"""What each way foresees, as points with their intervals."""

from __future__ import annotations

from pathlib import Path

from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure

_A_WAY = 0.24
"""Inches."""
_ENDS = ((1, 1), (-1, 2))
"""Of an interval: which way it lies of the mean, and its place beside it."""
_PACKAGES = ("dualform", "captum", "dattri", "none")


def draw_ways(path: Path, report: Report) -> Path:
    """A panel a measure, a row a way; colour and mark say whose package it is of."""
    ways = report["ways"]
    shares = [f"{share:g}" for share in report["sizes"]["shares"]]
    panels_of = {f"LDS, {share} kept": [way["lds"][share] for way in ways.values()] for share in shares}
    panels_of["leave one out"] = [way["leave_one_out"] for way in ways.values()]
    with new_figure(path, 1 + _A_WAY * len(ways)) as figure:
        panels = figure.subplots(1, len(panels_of), sharey=True, squeeze=False).ravel()
        for panel, (title, measured) in zip(panels, panels_of.items(), strict=True):
            panel.set_title(title, loc="left", pad=3)
            panel.axvline(0, color="0.6", linewidth=0.8)
            panel.grid(axis="y", color="0.92", linewidth=0.5)
            for package, ink, mark in zip(_PACKAGES, INK, MARKS, strict=True):
                own = [at for at, way in enumerate(ways.values()) if way["package"] == package]
                if not own:
                    continue
                means = [measured[at][0] for at in own]
                apart = [
                    [measured[at][0] - measured[at][1] for at in own],
                    [measured[at][2] - measured[at][0] for at in own],
                ]
                label = "no package" if package == "none" else package
                panel.errorbar(means, own, xerr=apart, fmt=mark, color=ink, markersize=4, linewidth=1, label=label)
        panels[0].set_yticks(range(len(ways)), list(ways))
        panels[0].invert_yaxis()
        lines, words = panels[0].get_legend_handles_labels()
        figure.legend(lines, words, loc="outside upper center", ncols=len(words))
    return path
