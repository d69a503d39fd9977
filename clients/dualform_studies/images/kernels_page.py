"""Other kernels on the page of a study: tables, a figure, and what remark 3.2 of the paper hopes for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from dualform_studies.pages.claims import Claim, Verdict, verdict
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page

HEADING = "Softmax in place of the inner product"
CHANCE = 0.01
"""Below it, a difference between two kernels on the same images is none of chance."""
_PLACES = {"last": "the last layer", "every": "every layer"}
_CRITERION = (
    "of the softmax that is best on held-out images: better than the inner product on the same test images by "
    "McNemar's test with p < 0.01; in part: no difference beyond chance"
)


def kernel_claims(report: Report) -> Iterator[Claim]:
    """Remark 3.2, at the last layer and at every layer."""
    for place, words in _PLACES.items():
        chosen, linear = report[place]["chosen"], report[place]["kernels"][0]
        yield Claim(
            "remark 3.2",
            f"More powerful kernels, as softmax, might make better models: tried at {words}, after training with the "
            "inner product.",
            "a possibility, not tried",
            f"{_kernel(chosen)} {_percent(chosen['tested'])}, inner product {_percent(linear['tested'])} of "
            f"{report[place]['images']['tested']:,} test images ({chosen['gained']} gained, {chosen['lost']} lost, "
            f"p = {chosen['p']:.2g})",
            kernel_verdict(chosen),
            _CRITERION,
            HEADING,
        )


def kernel_verdict(chosen: Report) -> Verdict:
    """By the paired test: 1 for a kernel that is better, -1 for one that is worse, 0 where chance could be all."""
    certain = chosen["p"] < CHANCE
    return verdict(certain * (1 if chosen["gained"] > chosen["lost"] else -1), 1, 0)


def show_kernels(page: Page, report: Report) -> None:
    page.heading(HEADING)
    last, every = report["last"], report["every"]
    page.paragraph(
        "The network was trained with the inner product, and is asked with a softmax over the same slots (remarks 2.3 "
        "and 3.2 of the paper): W_0 q + b + sum of p_t e_t, or that sum alone. At the last layer the queries are the "
        f"network's own, of {last['images']['tested']:,} test images; where every layer has the kernel, of "
        f"{every['images']['tested']:,} (the first of each class, as many of each, to keep to minutes), each layer's "
        "answer after relu is the next one's query. A mean of values is many times smaller than the sum that training "
        f"made of them, so that W_0 q outweighs it. {_chosen(report)} Sums were computed in float32; for some test "
        f'images they were held against the exact answers of output(kernel="softmax"), and lay within '
        f"{last['off']:.0e} of the greatest."
    )
    page.show(_last_table(last), _every_table(every))
    page.figure(
        report_folder(page.run) / "kernels.png",
        "Test accuracy and effective number of slots by the temperature of the softmax (no figure of the paper; its "
        "remark 3.2).",
    )


def _chosen(report: Report) -> str:
    """Which temperature the held-out images choose, in a sentence."""
    told = " and ".join(f"for {words} {_kernel(report[place]['chosen'])}" for place, words in _PLACES.items())
    counts = " and ".join(f"{report[place]['images']['held_out']:,}" for place in _PLACES)
    return f"The best softmax on {counts} images that were neither trained nor tested on is {told}."


def draw_kernels(path: Path, report: Report) -> Path:
    """Accuracies above, effective slots below, both by temperature."""
    with new_figure(path, 4.6) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
        for number, (place, words) in enumerate(_PLACES.items()):
            for initial in (True, False):
                rows = _softmax(report[place], initial)
                beside = "with" if initial else "without"
                _line(above, rows, "tested", number, initial, f"{words}, {beside} W₀ and bias")
        baseline = report["last"]["kernels"][0]["tested"]
        above.axhline(100 * baseline, color="0.3", linestyle=":", linewidth=1)
        above.annotate(
            "inner product, last layer's images", (0, 100 * baseline), (4, -3), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="top", fontsize=8,
        )  # fmt: skip
        above.set_ylabel("test accuracy (%)")
        above.set_ylim(0, 104)
        above.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=2)
        rows = _softmax(report["last"], initial=True)
        slots = [row["effective_slots"][0] for row in rows]
        below.plot([row["temperature"] for row in rows], slots, color=INK[0], marker=MARKS[0])
        below.set_yscale("log")
        below.set_xscale("log")
        below.set_ylabel("effective slots,\nlast layer (median)")
        below.set_xlabel("temperature of the softmax (in units of the scores)")
        figure.align_ylabels([above, below])
    return path


def _line(panel: Axes, rows: Sequence[Report], name: str, number: int, initial: bool, label: str) -> None:
    values = [100 * row[name] for row in rows]
    panel.plot(
        [row["temperature"] for row in rows],
        values,
        color=INK[number],
        marker=MARKS[2 * number + initial],
        linestyle="-" if initial else "--",
        markerfacecolor=INK[number] if initial else "white",
        label=label,
    )


def _softmax(comparison: Report, initial: bool) -> list[Report]:
    rows: list[Report] = comparison["kernels"]
    return [row for row in rows if row["temperature"] is not None and row["initial"] is initial]


def _last_table(comparison: Report) -> Table:
    """One row a kernel."""
    rows: list[list[Cell]] = []
    with_initial, without = ([row for row in comparison["kernels"] if row["initial"] is one] for one in (True, False))
    for one, other in zip(with_initial, without, strict=True):
        effective = f"{one['effective_slots'][0]:,.3g}" if one["effective_slots"] else "-"
        accuracies = (one["tested"], one["held_out"], other["tested"], other["held_out"])
        rows.append([_name(one), effective, *map(_percent, accuracies)])
    caption = (
        f"The last layer by kernel: accuracy on {comparison['images']['tested']:,} test images and on "
        f"{comparison['images']['held_out']:,} held-out ones, with W_0 and bias and without; effective slots are the "
        "median of 1 / sum of p² over the test images."
    )
    columns = ["kernel", "effective slots", "with W_0, test", "held out", "without, test", "held out"]
    return Table("kernels-last", caption, columns, rows)


def _every_table(comparison: Report) -> Table:
    rows: list[list[Cell]] = []
    for row in comparison["kernels"]:
        effective = [f"{slots:,.3g}" for slots in row["effective_slots"]] or ["-"] * len(
            comparison["chosen"]["effective_slots"]
        )
        beside = "with" if row["initial"] else "without"
        rows.append([_name(row), beside, *effective, _percent(row["tested"]), _percent(row["held_out"])])
    layers = [f"effective slots, layer-{number}" for number in range(len(comparison["chosen"]["effective_slots"]))]
    caption = (
        f"Every layer by kernel: accuracy on {comparison['images']['tested']:,} test images and on "
        f"{comparison['images']['held_out']:,} held-out ones."
    )
    return Table("kernels-every", caption, ["kernel", "W_0 and bias", *layers, "test", "held out"], rows)


def _name(row: Report) -> str:
    return "inner product" if row["temperature"] is None else f"softmax, temperature {row['temperature']:g}"


def _kernel(row: Report) -> str:
    return f"{_name(row)}, {'with' if row['initial'] else 'without'} W_0 and bias,"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
