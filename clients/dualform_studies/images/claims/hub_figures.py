"""Hubs, drawn: how unevenly attention falls on the training images, and the pictures of the greatest hubs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from dualform_studies.images.claims.attention import TOP
from dualform_studies.images.claims.hubs import GREATEST, LayerHubs
from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.query_figure import show_picture
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure


def draw_hub_distribution(path: Path, layers: Sequence[LayerHubs]) -> Path:
    """Of each training image the share of the test images compared that have it among their best, descending."""
    with new_figure(path, 3.2, "How many test images attend most to the same training image") as figure:
        panels = figure.subplots(1, len(layers), sharex=True, sharey=True, squeeze=False)[0]
        for panel, one in zip(panels, layers, strict=True):
            rankings = {"by weight": one.signed.shares, "by cosine": one.cosine.shares}
            for at, (words, shares) in enumerate(rankings.items()):
                _draw_ranks(panel, shares, at, words)
            panel.set_title(one.layer, loc="left", pad=3)
            panel.set_xlabel("rank of the training image")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panels[0].set_ylabel(f"test images that have it\namong their {TOP} best (%)")
        handles, words = panels[0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=len(handles))
    return path


def _draw_ranks(panel: Axes, shares: NDArray[np.float64], at: int, words: str) -> None:
    ordered = np.sort(shares[shares > 0])[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    marked = np.unique(np.searchsorted(ranks, np.geomspace(1, len(ranks), 7).round()))
    panel.loglog(
        ranks,
        100 * ordered,
        ("-", "--")[at],
        color=INK[at],
        marker=MARKS[at],
        markersize=4,
        markevery=marked.tolist(),
        linewidth=1.3,
        label=words,
    )


def draw_hubs(path: Path, hubs: Mapping[str, Report], datasets: Sequence[Dataset]) -> Path:
    """The ten greatest hubs of each layer, of the test images compared; `hubs` as `hubs_report` gives it."""
    sources = {dataset.name: dataset for dataset in datasets}
    rows = [
        (f"{layer}\n{words}", found[ranking], share)
        for layer, found in hubs.items()
        for ranking, words, share in (
            ("greatest_signed", "by weight", "signed"),
            ("greatest_by_cosine", "by cosine", "cosine"),
        )
    ]
    compared = next(iter(hubs.values()))["compared"]
    title = f"The greatest hubs: class, share of {compared:,} test images, length of the key"
    with new_figure(path, 0.3 + 1.22 * len(rows), title) as figure:
        grid = figure.subplots(len(rows), GREATEST, squeeze=False)
        for panels, (words, images, share) in zip(grid, rows, strict=True):
            panels[0].set_ylabel(words, fontsize=7.5)
            for panel in panels[len(images) :]:
                panel.set_axis_off()
            for panel, image in zip(panels, images, strict=False):
                source = sources[image["dataset"]]
                name, part = source.label_names[image["label"]], f"{100 * image[share]:.1f} %"
                caption = f"{name}\n{part}\nlength {image['norm']:.1f}"
                show_picture(panel, source.picture(source.train.pixels[image["sample"]]), caption)
    return path
