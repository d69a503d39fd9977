"""Other kernels on the page of a study: tables, a figure, and what remark 3.2 of the paper hopes for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from dualform_studies.exact_tests import CHANCE, is_gain
from dualform_studies.pages.claims import FAILS, HOLDS, IN_PART, Claim, Verdict
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.frame import INK, MARKS, new_figure
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import percent

HEADING = "Softmax in place of the inner product"
ALONE = "without the sum: W_0 q + trained bias"
_PLACES = {"last": "the last layer", "every": "every layer"}
_CRITERION = (
    "of the softmax that is best on held-out images: better than the inner product on the same test images by "
    f"McNemar's test with p < {CHANCE:g}; in part: not that one, but another that was tried, with p < {CHANCE:g} over "
    "the number tried"
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
            f"{_kernel(chosen)}: {percent(chosen['tested'])}; inner product: {percent(linear['tested'])}; of "
            f"{report[place]['images']['tested']:,} test images ({chosen['gained']} gained, {chosen['lost']} lost, "
            f"p = {chosen['p']:.2g})",
            kernel_verdict(report[place]),
            _CRITERION,
            HEADING,
        )


def kernel_verdict(comparison: Report) -> Verdict:
    """By the paired test of a softmax with the inner product; one that is no better beyond chance proves nothing.

    The softmax that held-out images choose is tested once. The others count in part, those with a factor among them,
    and each by a bound that is smaller by the number of them: of many, one may look better by chance.
    """
    chosen = comparison["chosen"]
    if is_gain(chosen["gained"], chosen["lost"]):
        return HOLDS
    tried = [row for row in comparison["kernels"] if row["temperature"] is not None] + comparison.get("scaled", [])
    return IN_PART if any(is_gain(row["gained"], row["lost"], len(tried)) for row in tried) else FAILS


def show_kernels(page: Page, report: Report) -> None:
    page.heading(HEADING)
    last, every = report["last"], report["every"]
    page.paragraph(
        "The network was trained with the inner product, and is asked with a softmax over the same slots (remarks 2.3 "
        "and 3.2 of the paper): W_0 q + b + sum of p_t e_t, where the bias b is the trained one, or that sum alone. At "
        f"the last layer the queries are the network's own, of {last['images']['tested']:,} test images; where every "
        f"layer has the kernel, of {every['images']['tested']:,}, and each layer's answer after relu is the next one's "
        "query. (The first test images of each class, as many of each; more would take more than minutes.) All was "
        "computed in float32. At the last layer, for some test images and each temperature, it was held against the "
        'exact answers of output(kernel="softmax"): sums lay within '
        f"{last['off']:.0e} of the greatest, effective slots within the same share of their number. The other layers "
        "were not."
    )
    page.paragraph(
        "Training made a sum of the values, and a softmax makes a mean of them. "
        + " ".join(
            f"At {words}, W_0 q + b alone recognises {percent(report[place]['alone']['tested'])} of the test images, "
            f"and with such a mean beside it, {_span(_softmax(report[place], initial=True))}, by temperature."
            for place, words in _PLACES.items()
        )
        + f" {_chosen(report)} {_scaled(last)}"
    )
    page.show(_last_table(last), _every_table(every))
    page.figure(
        report_folder(page.run) / "kernels.png",
        "Test errors and effective number of slots by the temperature of the softmax (no figure of the paper; its "
        f"remark 3.2). Lines of the last layer are of {last['images']['tested']:,} test images, those of every layer "
        f"of {every['images']['tested']:,}; the lines without marks are the inner product's errors on the same images. "
        "No error at all is drawn as half an image.",
    )


def _span(rows: Sequence[Report]) -> str:
    low, high = (percent(extreme(row["tested"] for row in rows)) for extreme in (min, max))
    return low if low == high else f"{low} to {high}"


def _chosen(report: Report) -> str:
    """Which kernel the held-out images choose, in a sentence."""
    told = " and ".join(
        f"a {_kernel(report[place]['chosen'])} at {words} ({report[place]['images']['held_out']:,} images)"
        for place, words in _PLACES.items()
    )
    return f"Images that were neither trained nor tested on choose {told}."


def _scaled(last: Report) -> str:
    """What a factor makes of it, in a sentence or two."""
    best = max(last["scaled"], key=lambda row: row["held_out"])
    return (
        "As a variant, the sum of the last layer is multiplied by a power of ten that the held-out images choose: "
        f"they choose temperature {best['temperature']:g} and the factor {best['scale']:,.0f}, and of the test images "
        f"{percent(best['tested'])} are recognised ({best['gained']} gained, {best['lost']} lost against the inner "
        f"product, p = {best['p']:.2g})."
    )


def draw_kernels(path: Path, report: Report) -> Path:
    """Test errors above, effective slots below, both by temperature; all scales are logarithmic."""
    with new_figure(path, 4.8) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.8, 1))
        for number, (place, words) in enumerate(_PLACES.items()):
            tested = report[place]["images"]["tested"]
            for initial in (True, False):
                beside = "with W₀ and bias" if initial else "the sum alone"
                _line(above, _softmax(report[place], initial), tested, number, initial, f"{words}, {beside}")
            linear = error(report[place]["kernels"][0], tested)
            above.axhline(
                linear, color=INK[number], linestyle=(":", "-.")[number], linewidth=1.2, label=f"{words}, inner product"
            )
        factor, tested = report["last"]["scaled"], report["last"]["images"]["tested"]
        _line(above, factor, tested, len(_PLACES), False, "the last layer, with W₀, bias, and a factor")
        above.set_yscale("log")
        above.set_ylim(top=130)
        above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        above.yaxis.set_minor_locator(NullLocator())
        above.set_ylabel("test images mistaken (%)")
        figure.legend(loc="outside upper center", ncols=2)
        rows = _softmax(report["last"], initial=True)
        slots = [row["effective_slots"][0] for row in rows]
        below.plot([row["temperature"] for row in rows], slots, color=INK[0], marker=MARKS[0])
        below.set_yscale("log")
        below.set_xscale("log")
        below.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        below.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        below.set_ylabel("effective slots,\nlast layer (median)")
        below.set_xlabel("temperature of the softmax (in units of the scores)")
        figure.align_ylabels([above, below])
    return path


def _line(panel: Axes, rows: Sequence[Report], tested: int, number: int, filled: bool, label: str) -> None:
    panel.plot(
        [row["temperature"] for row in rows],
        [error(row, tested) for row in rows],
        color=INK[number],
        marker=MARKS[number],
        linestyle="-" if filled else "--",
        markersize=5 if filled else 9,
        markerfacecolor=INK[number] if filled else "none",  # lines may lie on one another
        label=label,
    )


def error(row: Report, tested: int) -> float:
    """In per cent of so many test images; half an image where there is none, for 0 has no logarithm."""
    return 100 * max(1 - float(row["tested"]), 0.5 / tested)


def _softmax(comparison: Report, initial: bool) -> list[Report]:
    rows: list[Report] = comparison["kernels"]
    return [row for row in rows if row["temperature"] is not None and row["initial"] is initial]


def _last_table(comparison: Report) -> Table:
    rows: list[list[Cell]] = []
    with_initial, without = ([row for row in comparison["kernels"] if row["initial"] is one] for one in (True, False))
    scaled = {row["temperature"]: row for row in comparison["scaled"]}
    for one, other in zip(with_initial, without, strict=True):
        effective = f"{one['effective_slots'][0]:,.3g}" if one["effective_slots"] else "-"
        factor = scaled.get(one["temperature"])
        of_factor = ("-", "-") if factor is None else (f"{factor['scale']:,.0f}", percent(factor["tested"]))
        rows.append([_name(one), effective, *map(percent, (one["tested"], other["tested"])), *of_factor])
    rows.append([ALONE, "-", percent(comparison["alone"]["tested"]), "-", "-", "-"])
    caption = (
        f"The last layer by kernel: accuracy on {comparison['images']['tested']:,} test images with W_0 and bias, with "
        "the sum over the slots alone, and with W_0, bias and the sum times a factor that held-out images choose; "
        "effective slots are the median of 1 / sum of p² over the test images."
    )
    columns = ["kernel", "effective slots", "with W_0 and bias", "the sum alone", "factor", "with the factor"]
    return Table("kernels-last", caption, columns, rows)


def _every_table(comparison: Report) -> Table:
    rows: list[list[Cell]] = []
    layers = range(len(comparison["chosen"]["effective_slots"]))
    for row in comparison["kernels"]:
        effective = [f"{slots:,.3g}" for slots in row["effective_slots"]] or ["-" for _ in layers]
        rows.append([_name(row), "yes" if row["initial"] else "no", *effective, *_accuracies(row)])
    rows.append([ALONE, "yes", *("-" for _ in layers), *_accuracies(comparison["alone"])])
    caption = (
        f"Every layer by kernel: accuracy on {comparison['images']['tested']:,} test images and on "
        f"{comparison['images']['held_out']:,} held-out ones; effective slots as in the table above, layer by layer."
    )
    of_layers = [f"effective slots, layer-{number}" for number in layers]
    return Table("kernels-every", caption, ["kernel", "W_0 and bias", *of_layers, "test", "held out"], rows)


def _accuracies(row: Report) -> tuple[str, str]:
    return percent(row["tested"]), percent(row["held_out"])


def _name(row: Report) -> str:
    return "inner product" if row["temperature"] is None else f"softmax of temperature {row['temperature']:g}"


def _kernel(row: Report) -> str:
    return f"{_name(row)}, {'with' if row['initial'] else 'without'} W_0 and bias"
