"""What the paper's section 6 and appendix D say of costs, put to the test, with the criteria."""

from __future__ import annotations

from collections.abc import Iterator

from dualform_studies.limits.storage import in_bytes
from dualform_studies.pages.claims import Claim, verdict, verdict_at_most
from dualform_studies.pages.folder import Report
from dualform_studies.pages.words import percent

STORAGE, COSTS, REPLAY = "Storage", "What it costs here", "Training again in place of storing"
"""Headings of the page."""

_PETABYTES = 14.0
_AS_NAMED, _NEARLY = 0.05, 0.2
"""Relative difference from a figure that the paper rounds."""
_LINEAR, _ROUGHLY_LINEAR = 0.1, 0.3
"""Relative difference of the bytes a slot of two lengths."""
_NOTHING, _LITTLE = 0.01, 0.1
"""Of a training's time, that one question may take."""


def limits_claims(report: Report) -> Iterator[Claim]:
    yield from _storage(report)
    yield from _asking(report)
    replay = report["replay"]
    same = replay["same"] / replay["questions"]
    yield Claim(
        "appendix D",
        "A reproducible training can be run again to answer questions, without its datapoints being stored.",
        "an option",
        f"{replay['same']} of {replay['questions']} answers equal to the last bit",
        verdict(same, 1.0, 2 / 3),
        "all answers; in part two thirds",
        REPLAY,
    )


def _storage(report: Report) -> Iterator[Claim]:
    layer = next(row for row in report["storage"] if row["text"])
    off = abs(layer["key_bytes"] / 1e15 - _PETABYTES) / _PETABYTES
    yield Claim(
        "appendix D",
        "The dual form of one self-attention layer of GPT-3 would take 14 PB.",
        layer["text"],
        f"{in_bytes(layer['key_bytes'])}, of the keys alone",
        verdict_at_most(off, _AS_NAMED, _NEARLY),
        f"within {percent(_AS_NAMED, 'g')}; in part {percent(_NEARLY, 'g')}",
        STORAGE,
    )
    short, long = report["measured"]
    grown = long["bytes_a_slot"] / short["bytes_a_slot"]
    yield Claim(
        "section 6",
        "Storage grows linearly with the training.",
        "no figure",
        f"{long['slots'] / short['slots']:.3g} times the slots take {grown * long['slots'] / short['slots']:.3g} times "
        "the bytes",
        verdict_at_most(abs(grown - 1), _LINEAR, _ROUGHLY_LINEAR),
        f"bytes a slot within {percent(_LINEAR, 'g')} of each other; in part {percent(_ROUGHLY_LINEAR, 'g')}",
        COSTS,
    )


def _asking(report: Report) -> Iterator[Claim]:
    long = report["measured"][-1]
    name, seconds = max(long["question_seconds"].items(), key=lambda one: one[1])
    share = seconds / long["training_seconds"]
    yield Claim(
        "appendix D",
        "Asking is nothing compared to the training.",
        "no figure",
        f"{100 * share:.2g} % of the training's time ({name}, the dearest question)",
        verdict_at_most(share, _NOTHING, _LITTLE),
        f"every kind of question, at all layers, at most {percent(_NOTHING, 'g')}; in part {percent(_LITTLE, 'g')}",
        COSTS,
    )
