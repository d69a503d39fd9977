"""The page "potentials and limits"."""

from __future__ import annotations

from pathlib import Path

from dualform_studies.limits.claims import COSTS, RERUN, STORAGE, limits_claims
from dualform_studies.limits.costs import BEST_SLOTS, MASK, QUESTIONS, SIGNED_SUMS
from dualform_studies.limits.sizes import PARTS
from dualform_studies.limits.storage import GPT_3, in_bytes
from dualform_studies.pages.claims import claims_table
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page
from dualform_studies.pages.words import listed


def limits_page(out: Path, report: Report) -> Page:
    page = Page(out, "Potentials and limits (section 6 and appendix D)")
    page.paragraph(
        "What the paper names as limits and costs of the dual form, what they come to here, and what dualform does "
        "about each."
    )
    page.show(claims_table(list(limits_claims(report))), _limits_table(report))
    page.heading(STORAGE)
    page.paragraph(
        "Bytes of keys: datapoints, times the widths of the keys, times the bytes of a "
        "number. A rerun keeps no keys, only the columns of slots and digests of each step. The network's weights "
        "before and after come on top either way."
    )
    page.show(_storage_table(report))
    page.heading(COSTS)
    page.paragraph(_costs(report))
    page.show(_costs_table(report))
    page.heading(RERUN)
    page.paragraph(_rerun(report))
    page.show(_rerun_table(report))
    return page


def _limits_table(report: Report) -> Table:
    short, long = report["measured"][0], report["measured"][-1]
    gpt_3 = next(row for row in report["storage"] if row["name"] == GPT_3.name)
    reran, stored = report["rerun"]["bytes"], short["bytes"]
    best, signed = (1e3 * long["warm_seconds"][name] for name in (BEST_SLOTS, SIGNED_SUMS))
    slower = long["warm_seconds"][SIGNED_SUMS] / short["warm_seconds"][SIGNED_SUMS]
    cancelled = max(long["cancellation"].values())
    rows = [
        (
            "Storing every datapoint takes room that grows linearly with the training (sections 3 and 6, appendix D).",
            f"{in_bytes(gpt_3['key_bytes'])} for a layer of GPT-3; "
            f"{in_bytes((long['bytes']['keys'] + long['bytes']['values']) / long['slots'])} a slot here, keys and "
            "values of all layers.",
            "An input that comes again, as images do in each epoch, is stored once; keys of a layer that computes in "
            "bfloat16 take half; labels, dates and positions are columns of a database that SQL reads.",
        ),
        (
            "Computing attention weights takes time that grows linearly with the training, once (appendix D).",
            f"{best:.1f} ms for the ten best of {long['slots']:,} slots, {signed:.1f} ms for the signed weights of "
            f"each label, at all layers, asked again; the latter took {slower:.2g} times as long as of "
            f"{short['slots']:,} slots.",
            "Most keys are ruled out by eight-bit codes, and the rest scored exactly. Sums of keys are kept by group, "
            "so that signed sums need no further pass over the slots.",
        ),
        (
            "Storage limits experiments to small datasets (section 6).",
            f"Of the training of {short['slots']:,} slots, keys and values take "
            f"{in_bytes(stored['keys'] + stored['values'])} and tables {in_bytes(stored['tables'])}; of its rerun, "
            f"{in_bytes(reran['keys'] + reran['values'])} and {in_bytes(reran['tables'])}.",
            "A training that can be run again needs no stored keys: the first run gives the queries, the second "
            "answers them.",
        ),
        (
            "The analysis does not apply to models that are trained already (section 6).",
            "Not to be measured.",
            "Nor does dualform: what happened before recording began is the initial weight of the memory, one term "
            "that no mask divides. A training that goes on can be recorded from where it stands.",
        ),
        (
            "It shows which datapoints are combined, not how they make a meaningful output (section 6).",
            f"The terms that the mask `{MASK}` leaves out are {cancelled:.1f} times as long, added up one by one, as "
            "their sum, in the layer where they cancel most.",
            "Outputs and whole networks under any mask say what datapoints bring together. Why the combination is "
            "right they do not say; and a mask is arithmetic, not a training without the datapoints: the "
            "cancellation tells how far the two may be apart.",
        ),
        (
            "A memory of unlimited size is not necessarily useful: retrieval has to be powerful enough (remark 3.2).",
            "See the single task.",
            'The same memory ranks and sums by another score, `score="cosine"`, and answers with another kernel, '
            '`kernel="softmax"`, both under any mask.',
        ),
    ]
    return Table(
        "limits", "Limits, one by one.", ("what the paper says", "what it comes to", "what dualform does"), rows
    )


def _storage_table(report: Report) -> Table:
    return Table(
        "storage",
        "Keys of the trainings that the paper reports, and of the one that it estimates. The paper's code keeps those "
        "of its LSTMs in float16. The digests of GPT-3's rerun are left out: the paper does not say how many updates "
        "it took.",
        ("training", "keys", "bytes", "the paper's text", "columns and digests of a rerun"),
        [
            (
                row["name"],
                row["what"],
                in_bytes(row["key_bytes"]),
                row["text"] or "-",
                in_bytes(row["rerun_bytes"]),
            )
            for row in report["storage"]
        ],
    )


def _costs(report: Report) -> str:
    measured = report["measured"]
    short, long = measured[0], measured[-1]
    steps = [f"{one['steps']:,}" for one in measured]
    slower = [long["warm_seconds"][name] / short["warm_seconds"][name] for name in QUESTIONS]
    return (
        f"Trainings of the paper's network on scikit-learn's digits ({report['recipe']}), of "
        f"{listed(steps)} updates, were recorded with keys and values. A question is one test image at all layers. It "
        "is asked cold, of a memory opened for it alone, whose files the system still holds, and warm, asked again and "
        "again, of which the least time counts: masks, sums of keys and weights that do not depend on the query are at "
        "hand then. From the shortest training to the longest, with "
        f"{long['slots'] / short['slots']:.3g} times the slots, a warm question takes {min(slower):.2g} to "
        f"{max(slower):.2g} times as long. All was measured while this study ran, on whatever else the machine was "
        "doing: `docs/results/benchmarks.md` has larger memories, and other programs beside."
    )


def _costs_table(report: Report) -> Table:
    measured = report["measured"]
    rows: list[tuple[str, ...]] = [
        *((f"{words} (kB)", *(_kilobytes(one["bytes"][part]) for one in measured)) for part, words in PARTS.items()),
        ("training (s)", *(f"{one['plain_seconds']:.2f}" for one in measured)),
        ("training, recorded (s)", *(f"{one['recorded_seconds']:.2f}" for one in measured)),
        ("ten best slots of all test images, warm (s)", *(f"{one['scoring_seconds']:.3g}" for one in measured)),
    ]
    for way in ("cold", "warm"):
        for name in QUESTIONS:
            rows.append((f"{name}, {way} (ms)", *(f"{1e3 * one[f'{way}_seconds'][name]:,.1f}" for one in measured)))
    columns = ("", *(f"{one['slots']:,} slots" for one in measured))
    return Table("costs", "Costs by the length of the training.", columns, rows)


def _rerun(report: Report) -> str:
    rerun, short = report["rerun"], report["measured"][0]
    return (
        f"The training of {short['steps']:,} updates was recorded once more without keys and values and run again to "
        f"answer {rerun['questions']} questions about the best slots and the sums over labels: {rerun['same']} of "
        "the answers are those of the stored memory to the last bit."
    )


def _rerun_table(report: Report) -> Table:
    stored, reran = report["measured"][0]["bytes"], report["rerun"]["bytes"]
    return Table(
        "rerun",
        "What either way stores, in kB. Query sets are what the stored memory is asked about.",
        ("", "keys stored", "rerun"),
        [(words, *(_kilobytes(sizes[part]) for sizes in (stored, reran))) for part, words in PARTS.items()],
    )


def _kilobytes(size: int) -> str:
    return f"{size / 1e3:,.0f}"
