"""The figures of the study, drawn from its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dualform_studies.images.query_figure import show_picture
from dualform_studies.pages.folder import Report
from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.pages.words import percent

_COLUMNS = 8
_MARK_SIZE = 4.5
_APART = 0.12
"""Half of what keeps the two marks of a layer apart."""


def short(layer: str) -> str:
    """Its name within the network, which the LightningModule holds."""
    return layer.removeprefix("network.")


def draw_images(path: Path, example: Report, report: Report) -> Path:
    """The test image, and of every layer the training image that draws most of its attention."""
    names = report["class_names"]
    shown = [(example["pixels"], f"TEST IMAGE {example['row']}\n{names[example['label']]}\n")]
    for one in example["layers"]:
        leads = report["attention"][one["layer"]]["leads_for"][str(one["image"])]
        caption = f"{short(one['layer'])}\n{names[one['label']]} {one['image']}\nleads for {percent(leads, '.1f')}"
        shown.append((one["pixels"], caption))
    rows = -(-len(shown) // _COLUMNS)
    with new_figure(path, 1.4 * rows, shades=True) as figure:
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        for panel, (pixels, caption) in zip(panels, shown, strict=False):
            bright = np.frombuffer(bytes.fromhex(pixels), np.uint8)
            side = round(len(bright) ** 0.5)
            show_picture(panel, np.divide(bright.reshape(side, side), 255, dtype=np.float32), caption)
    return path


def draw_classes(path: Path, attention: Report) -> Path:
    """By layer, how often the class that draws most attention is the one that the network predicts, and the true one.

    No line joins the layers: a shortcut does not come before the layer that is named after it.
    """
    layers = list(attention)
    with new_figure(path, 2.9, "How often the training class that draws most attention is …") as figure:
        panel = figure.subplots()
        for (name, words), ink, mark, aside in zip(_LIKE.items(), INK, MARKS, (-_APART, _APART), strict=False):
            for kind, shortcut, fill in ((words, False, ink), (f"{words}, at a shortcut", True, "white")):
                places = [at for at, layer in enumerate(layers) if ("shortcut" in layer) == shortcut]
                shares = [100 * attention[layers[at]][name] for at in places]
                beside = [place + aside for place in places]
                panel.plot(
                    beside, shares, mark, color=ink, markerfacecolor=fill, markersize=_MARK_SIZE, label=f"… {kind}"
                )  # fmt: skip
        panel.axhline(10, color="0.4", linestyle=":", linewidth=1, label="chance")
        panel.set_xticks(range(len(layers)), [short(layer) for layer in layers], rotation=60, ha="right", fontsize=7)
        panel.set_ylabel("test images (%)")
        panel.set_ylim(0, 100)
        panel.legend(ncols=1)
    return path


_LIKE = {"said": "the class that the network predicts", "true": "the true class"}
