"""The page "potentials and limits"."""

from __future__ import annotations

from pathlib import Path

from dualform_studies.limits.claims import COSTS, REPLAY, STORAGE, limits_claims
from dualform_studies.limits.costs import BEST_SLOTS, MASK, QUESTIONS, SIGNED_SUMS
from dualform_studies.limits.storage import in_bytes
from dualform_studies.pages.claims import claims_table
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Table
from dualform_studies.pages.page import Page


def limits_page(out: Path, report: Report) -> Page:
    page = Page(out, "Potentials and limits (section 6 and appendix D)")
    page.paragraph(
        "What the paper names as limits and costs of the dual form, what they come to here, and what dualform does "
        "about each."
    )
    page.show(claims_table(list(limits_claims(report))), _limits_table(report))
    page.heading(STORAGE)
    page.paragraph(
        "Bytes of keys by `dualform.replay.estimate`: datapoints, times the widths of the keys, times the bytes of a "
        "number. A replay keeps no keys, only the columns of slots and digests of each step."
    )
    page.show(_storage_table(report))
    page.heading(COSTS)
    page.paragraph(_costs(report))
    page.show(_costs_table(report))
    page.heading(REPLAY)
    page.paragraph(_replay(report))
    return page


def _limits_table(report: Report) -> Table:
    long = report["measured"][-1]
    gpt_3 = next(row for row in report["storage"] if row["text"])
    best, signed = (1e6 * long["question_seconds"][name] for name in (BEST_SLOTS, SIGNED_SUMS))
    replay = report["replay"]
    cancelled = max(long["cancellation"].values())
    rows = [
        (
            "Storing every datapoint takes room that grows linearly with the training (sections 3 and 6, appendix D).",
            f"{in_bytes(gpt_3['key_bytes'])} for a layer of GPT-3; {in_bytes(long['bytes_a_slot'])} a slot here, keys "
            "and values of three layers.",
            "An input that comes again, as images do in each epoch, is stored once; keys of a layer that computes in "
            "bfloat16 take half; labels, dates and positions are columns of a database that SQL reads.",
        ),
        (
            "Computing attention weights takes time that grows linearly with the training, once (appendix D).",
            f"{best:,.0f} µs for the ten best of {long['slots']:,} slots, {signed:,.0f} µs for the signed weights of "
            "each label, at three layers.",
            "Most keys are ruled out by eight-bit codes, and the rest scored exactly. Sums of keys are kept by group, "
            "so that signed sums cost the same whatever the length of the training.",
        ),
        (
            "Storage limits experiments to small datasets (section 6).",
            f"A replay of this training kept {in_bytes(replay['replay_bytes'])}, where keys and values are "
            f"{in_bytes(replay['stored_bytes'])}.",
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
            'The same memory can be asked by other kernels, `score="cosine"` and `kernel="softmax"`, and under any '
            "mask.",
        ),
    ]
    return Table(
        "limits", "Limits, one by one.", ("what the paper says", "what it comes to", "what dualform does"), rows
    )


def _storage_table(report: Report) -> Table:
    return Table(
        "storage",
        "Keys of the trainings that the paper reports, and of the one that it estimates. The paper's code keeps those "
        "of its LSTMs in float16.",
        ("training", "keys", "bytes", "the paper's text", "files of the paper's code", "by replay"),
        [
            (
                row["name"],
                row["what"],
                in_bytes(row["key_bytes"]),
                row["text"] or "-",
                row["code"] or "-",
                in_bytes(row["replay_bytes"]),
            )
            for row in report["storage"]
        ],
    )


def _costs(report: Report) -> str:
    short, long = report["measured"]
    return (
        f"Two trainings of the paper's network on scikit-learn's digits ({report['recipe']}), of {short['steps']:,} "
        f"and {long['steps']:,} updates, were recorded with keys and values. A question is one test image at all three "
        "layers, asked again and again; the least time counts, so masks, sums of keys and weights that do not depend "
        "on the query were at hand. At these lengths most of a question's time is what any question takes. All was "
        "measured while this study ran, on whatever else the machine was doing: `docs/benchmarks.md` has larger "
        "memories, and other programs beside."
    )


def _costs_table(report: Report) -> Table:
    measured = report["measured"]
    rows: list[tuple[str, ...]] = [
        ("bytes on disk a slot", *(f"{one['bytes_a_slot']:,.0f}" for one in measured)),
        ("training, recorded (s)", *(f"{one['training_seconds']:.2f}" for one in measured)),
    ]
    for name in QUESTIONS:
        rows.append((f"{name} (µs)", *(f"{1e6 * one['question_seconds'][name]:,.0f}" for one in measured)))
    columns = ("", *(f"{one['slots']:,} slots" for one in measured))
    return Table("costs", "Costs by the length of the training.", columns, rows)


def _replay(report: Report) -> str:
    replay, short = report["replay"], report["measured"][0]
    return (
        f"The training of {short['steps']:,} updates was recorded once more without keys "
        f"({in_bytes(replay['replay_bytes'])} in place of {in_bytes(replay['stored_bytes'])}; "
        f"{in_bytes(replay['weights_bytes'])} of it are the network's weights before and after) and run again to "
        f"answer {replay['questions']} questions about the best slots and the sums over labels: {replay['same']} of "
        "the answers are those of the stored memory to the last bit."
    )
