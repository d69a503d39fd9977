"""Tables of what the memory knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.memorisation.memory.masks import SCOPES, Omission
from dualform_studies.memorisation.memory.retrieval import asked_by
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Cell, Table


def top_slots(memory: Engine, facts: Facts, pair: int, k: int = 5) -> Table:
    """Of the slots of each training token in either place the one that scores highest, and the k best of these."""
    rows = []
    hits = memory.topk("value", asked_by(pair), k=1, by=("token", "position"))
    for token, of_groups, weights in zip(facts.names[pair], hits.slots, hits.scores, strict=True):
        scores = np.concatenate(weights)
        best = np.argsort(-scores, kind="stable")[:k]
        slots, scores = np.concatenate(of_groups)[best], scores[best]
        for record, score in zip(memory.slots(slots, "token").records(), scores, strict=True):
            rows.append(
                (token, record["first"] + record["second"], record["token"], record["position"] + 1, record["step"],
                 record["slot"], float(score))
            )  # fmt: skip
    columns = (
        "asked by token", "training pair", "its token", "place", "step (the first is 0)", "slot", "attention weight",
    )  # fmt: skip
    return Table(
        "top-slots",
        "First level: the slots of greatest attention weight, one of each training token in either place.",
        columns,
        rows,
    )


def left_out(found: Sequence[Omission], facts: Facts) -> Table:
    """What is known when something was left out: of the other pairs, and of those left out."""
    rows: list[list[Cell]] = []
    for one in found:
        known = one.right(facts)
        counts = [_sum(known[name] & ~one.pairs, known[name] & one.pairs) for name in known]
        gives = TOKENS[int(facts.next_tokens[one.pairs][0])]
        rows.append(
            [one.name, gives, _sum(~one.pairs, one.pairs), *counts,
             *(f"{one.cancellation[layer]:.1f}" for layer in ("query", "key", "value")),
             f"{one.share['value']:.2f}"]
        )  # fmt: skip
    caption = (
        "Pairs known when some are left out: others+those left out. Masks take terms out of the sum of these layers; "
        "retrained is a network that never saw the pairs, from the same start. Cancellation is the sum of norms over "
        "the norm of the sum of the terms left out, and share how large their sum is beside all that training added."
    )
    columns = ("left out", "next token", "there are", *(f"{scope} masked" for scope in SCOPES), "retrained",
               "cancellation: query", "key", "value", "share of value")  # fmt: skip
    return Table("left-out", caption, columns, rows)


def left_out_means(found: Sequence[Omission], facts: Facts) -> Report:
    """By network: percent of the other pairs still known, and of those left out, over single pairs and over classes."""
    report: Report = {}
    for kind, chosen in (
        ("pairs", [one for one in found if one.where.startswith("NOT")]),
        ("classes", [one for one in found if not one.where.startswith("NOT")]),
    ):
        known = [(one.pairs, one.right(facts)) for one in chosen]
        report[kind] = {
            name: {
                "others": 100 * float(np.mean([right[name][~pairs].mean() for pairs, right in known])),
                "left_out": 100 * float(np.mean([right[name][pairs].mean() for pairs, right in known])),
            }
            for name in (*SCOPES, "retrained")
        }
    return report


def _sum(others: NDArray[np.bool_], left_out: NDArray[np.bool_]) -> str:
    return f"{others.sum()}+{left_out.sum()}"
