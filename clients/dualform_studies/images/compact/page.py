"""The page of the study "compact"."""

from __future__ import annotations

from pathlib import Path

from dualform_studies.images.compact.claims import ORDER, RANKS, SAME_ANSWER, SPAN, remarks
from dualform_studies.images.compact.figure import draw_ranks
from dualform_studies.images.compact.order import BEST
from dualform_studies.images.compact.ranks import ALL_LAYERS, SHARES
from dualform_studies.pages.claims import claims_table
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import listed, percent
from dualform_studies.reconstructions import reconstruction_table


def compact_page(out: Path, report: Report) -> Page:
    """The page, with its figure drawn."""
    page = Page(out, "The memory shuffled, sidestepped and compacted (remarks 3.1, 3.3 and 3.4)")
    page.paragraph(
        f"One network is trained as in the single task: {report['recipe']}; {report['steps']:,} updates on MNIST. It "
        f"is trained on {report['trained_on']}. The memory has {report['slots']:,} slots. A layer's key is its input "
        "with a 1 behind it, so that the bias is the weight's last column; an update is [W | b] at the end less "
        "[W | b] at the start, in float64."
    )
    page.show(claims_table(list(remarks(report))))
    page.heading(ORDER)
    page.paragraph(_order(report))
    page.show(_order_table(report))
    page.heading(SPAN)
    page.paragraph(_span(report))
    page.show(_span_table(report))
    page.heading(RANKS)
    page.paragraph(
        "The singular value decomposition of an update is a memory, too: its right singular vectors are keys, its left "
        "ones times the singular values are values, and with all of them every query gets the output that the slots "
        "give it. The table says how many directions hold a share of an update's squared Frobenius norm, and how many "
        "keep a share of the accuracy: the least number tried from which on the network never falls below it."
    )
    page.figure(
        draw_ranks(report_folder(out) / "ranks.png", report),
        "What the first directions of each update hold of it, and the accuracy that they keep (no figure of the "
        "paper; its remark 3.4).",
    )
    page.paragraph(_without(report))
    page.show(_ranks_table(report), _numbers_table(report))
    page.paragraph(_compact(report))
    page.heading("What one direction is made of")
    page.paragraph(_mixture(report))
    page.show(_mixture_table(report))
    page.heading("The reconstruction error")
    page.show(reconstruction_table(report["verify"]))
    return page


def _order(report: Report) -> str:
    order = report["order"]
    apart = max(max(layer["outputs"], layer["sums"]) for layer in order["layers"].values())
    rounding = "no more than" if apart <= SAME_ANSWER else "more than"
    return (
        f"{order['pairs']:,} keys and values, drawn from the whole training, were recorded again, once in the order of "
        f"the training and once shuffled, and {order['queries']:,} test images asked of both. Outputs and sums differ "
        f"by {apart:.1e} of their length at most: {rounding} float32's rounding brings, of the outputs and of the "
        "gradient factor that the recorder measures of each step. The paper's remark is that time shows only in keys "
        "and values, not in where they stand."
    )


def _order_table(report: Report) -> Table:
    return Table(
        "order",
        "The greatest relative difference between both orders over the queries, and how often the "
        f"{BEST} slots of greatest score are the same pairs.",
        ("layer", "outputs", "sums over labels", f"same {BEST} best"),
        [
            (name, _small(layer["outputs"]), _small(layer["sums"]), percent(layer["same_best"]))
            for name, layer in report["order"]["layers"].items()
        ],
    )


def _span(report: Report) -> str:
    span = report["span"]
    whole = [name for name, layer in span.items() if "query" not in layer]
    text = (
        "A query orthogonal to all keys draws no attention, and the layer answers W₀x and its bias. Such queries "
        "exist where the keys do not span the whole space: pixels that are the same in every training image, and "
        "hidden units that no training image wakes, leave directions out. Where some do, the query asked is the part "
        "of a test image's input that lies outside the span, of the image that has most of it, made as long as the "
        "input is; beside it stands that test image itself."
    )
    if whole:
        text += f" The keys of {listed(whole)} span everything: nothing there is orthogonal to all of them."
    return text


def _span_table(report: Report) -> Table:
    rows: list[list[Cell]] = []
    for name, layer in report["span"].items():
        query = layer.get("query", {})
        row: list[Cell] = [name, layer["width"], layer["rank"]]
        row += [percent(layer["outside_mean"], ".2g"), percent(layer["outside_most"], ".2g")]
        for key in ("added", "added_test_query", "bias_moved"):
            row.append(f"{query[key]:.1e}" if query else None)
        for key in ("greatest_weight", "greatest_weight_test_query"):
            row.append(f"{query[key]:.2g}" if query else None)
        rows.append(row)
    columns = [
        "layer",
        "width",
        "rank of the keys",
        "outside: mean",
        "outside: most",
        "added, query outside",
        "added, test image",
        "moved, the bias",
        "greatest weight, query outside",
        "greatest weight, test image",
    ]
    caption = (
        "The span of each layer's keys, to float32's precision; the share of the test inputs' squared length outside "
        "of it; and for the query outside and its test image, the length of what training adds beside the bias, over "
        "that of W₀x, how far the bias moved, over the same, and the greatest absolute attention weight over all slots."
    )
    return Table("span", caption, columns, rows)


def _ranks_table(report: Report) -> Table:
    shares = [percent(share, "g") for share in SHARES]
    columns = ["cut", "directions", *(f"{s} of the update" for s in shares), *(f"{s} of the accuracy" for s in shares)]
    rows: list[list[Cell]] = [
        [name, row["directions"], *row["holding_energy"].values(), *row["keeping_accuracy"].values()]
        for name, row in report["ranks"].items()
    ]
    most = max(row["directions"] for row in report["ranks"].values())
    rows.append([f"{ALL_LAYERS}, each to so many", most, *([None] * len(SHARES)), *report["ranks_all"].values()])
    caption = f"Directions that hold so much, of {report['slots']:,} slots."
    return Table("ranks", caption, columns, rows)


def _numbers_table(report: Report) -> Table:
    rows = [
        (name, *(row["numbers"][what] for what in ("slots", "directions", "weight")))
        for name, row in report["ranks"].items()
    ]
    return Table(
        "numbers",
        "Numbers stored: the keys and values of all slots, those of the directions that hold 99.9 % of the update, and "
        "the weight itself with its bias.",
        ("layer", "slots", "directions", "weight"),
        rows,
    )


def _without(report: Report) -> str:
    """What the accuracy is with nothing, and with the least fortunate number of directions, of one layer's update."""
    nothing, some = [], []
    for layer in report["ranks"]:
        by_rank = {int(rank): reached for rank, reached in report["accuracy"][layer].items()}
        least, worst = min((reached, rank) for rank, reached in by_rank.items() if rank)
        nothing.append(f"{percent(by_rank[0])} ({layer})")
        some.append(f"{percent(least)} ({worst} of {layer})")
    return (
        f"With nothing of one layer's update the network still recognises {listed(nothing)}; with some directions of "
        f"it, at the least {listed(some)}. Where the second is less, a few directions do worse than none: what an "
        "update does is what its terms come to together."
    )


def _compact(report: Report) -> str:
    compact = report["compact"]
    beside = "fewer" if compact["numbers"] < compact["weights_numbers"] else "more"
    return (
        f"With the directions that hold 99.9 % of each layer's update, {percent(compact['accuracy'], '.2f')} of the "
        f"test images are recognised, with all of them {percent(compact['accuracy_all'], '.2f')}. They are "
        f"{compact['numbers']:,} numbers, where the slots are {compact['slots_numbers']:,}: that these are more "
        "follows from the shapes, as a layer has no more directions than its narrower side has numbers. The weights "
        f"themselves are {compact['weights_numbers']:,}: the directions are {beside} than the layers need "
        "without any memory."
    )


def _mixture(report: Report) -> str:
    first = {name: own[0] for name, own in report["mixture"].items()}
    effective = listed([f"{layer['effective_slots']:,.0f} at {name}" for name, layer in first.items()])
    return (
        "What the compact memory loses is whom it speaks of. A singular value is a sum over all slots, s = sum of "
        "(u . e)(v . x): its key is no input that the layer ever saw, and its attention weight goes to no datapoint. "
        f"The first direction of each layer is spread over as many slots as this effective number says: {effective}, "
        f"of {report['slots']:,}. That is the sense in which the paper's form is the one to read: it is larger, and "
        "relates a test input to training datapoints."
    )


def _mixture_table(report: Report) -> Table:
    rows = [
        (
            name,
            number,
            f"{one['strength']:.4g}",
            f"{one['sum']:.4g}",
            f"{one['effective_slots']:,.0f}",
            f"{one['cancellation']:.1f}",
            percent(one["greatest_share"], ".3f"),
        )
        for name, own in report["mixture"].items()
        for number, one in enumerate(own, start=1)
    ]
    return Table(
        "mixture",
        "The first directions of each update: the singular value, the same added up over all slots, the effective "
        "number of slots (sum |c|)² / sum c², the cancellation sum |c| / |sum c|, and the greatest slot's share.",
        ("layer", "direction", "singular value", "sum over slots", "effective slots", "cancellation", "greatest slot"),
        rows,
    )


def _small(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"
