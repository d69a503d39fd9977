"""The figures of the study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualform_studies.images.data.datasets import Dataset
from dualform_studies.images.query_figure import show_picture
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure

_COLUMNS = 8


def short(layer: str) -> str:
    """Its name within the network, which the LightningModule holds."""
    return layer.removeprefix("network.")


def draw_images(path: Path, dataset: Dataset, example: Report) -> Path:
    """The test image, and of every layer the training image that draws most of its attention."""
    shown = [
        (None, example["row"], example["label"]),
        *((one["layer"], one["image"], one["label"]) for one in example["layers"]),
    ]
    rows = -(-len(shown) // _COLUMNS)
    with new_figure(path, 1.25 * rows, shades=True) as figure:
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        for panel, (layer, row, label) in zip(panels, shown, strict=False):
            images = dataset.test if layer is None else dataset.train
            caption = f"{short(layer) if layer else 'TEST IMAGE'}\n{dataset.label_names[label]}"
            show_picture(panel, dataset.picture(images.pixels[row]), caption)
    return path


def draw_labels(path: Path, layers: Sequence[str], told: Report) -> Path:
    """By layer, how often the label that draws most attention is the one that the network says, or the true one."""
    with new_figure(path, 2.7, "The training label that draws most attention, layer by layer") as figure:
        panel = figure.subplots()
        for (name, words), ink, mark in zip(_LIKE.items(), INK, MARKS, strict=False):
            shares = [100 * told[layer][name] for layer in layers]
            panel.plot(range(len(layers)), shares, f"{mark}-", color=ink, markersize=3.5, linewidth=1, label=words)
        panel.axhline(10, color="0.4", linestyle=":", linewidth=1, label="chance")
        panel.set_xticks(range(len(layers)), [short(layer) for layer in layers], rotation=60, ha="right", fontsize=7)
        panel.set_ylabel("test images (%)")
        panel.set_ylim(0, 100)
        panel.legend()
    return path


_LIKE = {"said": "is what the network says", "true": "is the true one"}
