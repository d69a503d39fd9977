"""What each head's memory attends to, before and after a pair is masked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dualform.query.engine import Engine
from dualform_studies.memorisation.memory.heads import HeadMemory, MaskedHeads, ask_heads, ask_masked, attended
from dualform_studies.memorisation.memory.heads_figures import draw_attention_by_pair, draw_masked_heads, draw_shifts
from dualform_studies.memorisation.memory.masks import Omission
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import HEADS, AttentionOnly
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.items import Cell, Table
from dualform_studies.pages.page import Page


def head_memory_chapter(
    page: Page, memory: Engine, network: AttentionOnly, facts: Facts, left_out: Sequence[Omission]
) -> Report:
    """`left_out` begins with every pair in turn."""
    folder, singles = report_folder(page.run), left_out[: len(facts)]
    found, masked = ask_heads(memory, network, facts), ask_masked(memory, network, facts, singles)
    own = np.eye(len(facts), dtype=np.bool_)
    before = found.attention
    # What stays for the other training pairs, of all that they had: the mask's own column is gone.
    moved = [
        np.abs(attended(scores, pattern) - before)[:, :, kept].sum() / np.abs(before[:, :, kept]).sum()
        for scores, pattern, kept in zip(masked.scores, masked.pattern, ~own, strict=True)
    ]
    lost = found.known & ~np.stack([one.right(facts)["query and key"] for one in singles])
    page.heading("What each head's memory attends to")
    page.paragraph(
        "The heads read one stream, so their memories hold the same keys, and a token scores alike with them all. "
        "What is a head's own is how its softmax divides its attention between the two tokens, and what its rows of "
        "the values hold. For every pair that is asked about, the attention weights with the slots of each training "
        "pair, summed over both tokens as the head's softmax divides them; and what these slots' values add, "
        "through the head, to the lead of the true next token over its strongest rival."
    )
    page.figure(
        draw_attention_by_pair(folder / "head-memory.png", found, facts),
        "Rows: the 25 pairs that are asked about. Columns: the 25 training pairs. Both in the order aa, ab, … ee; "
        "`a.` are the pairs that begin with a. Steps of colour are factors from a hundredth of the greatest "
        "magnitude on.",
    )
    page.show(_table(found, masked, facts))
    page.paragraph(
        "A mask on a pair takes its column out of every head's map, and no other attention weight changes: keys and "
        "queries of the value projection are what they were. Masked in query and key, too, it moves the second "
        "level: each head's softmax sends its attention elsewhere, and with it the other columns change, by "
        f"{100 * float(np.mean(moved)):.0f} % of their magnitude on average."
    )
    page.figure(
        draw_shifts(folder / "head-shifts.png", found, masked, lost),
        "How much more (red) or less (blue) each head attends to the first token of the pair asked about, with one "
        "training pair masked in query and key. Crosses: the pair asked about was known and is no longer.",
    )
    costs = masked.lost(found.known).sum(axis=2).mean(axis=0)
    page.paragraph(
        f"Of the {int(found.known.sum())} pairs that the network knows, a pair masked in query, key and value of one "
        "head alone costs "
        + ", ".join(f"{cost:.1f} others through head {head}" for head, cost in enumerate(costs, start=1))
        + " (means). Were heads a basis, a pair would hang on one head, and others not at all."
    )
    page.figure(
        draw_masked_heads(folder / "masked-heads.png", found, masked),
        "For each pair masked in the three projections of one head alone, how many of the others that the network "
        "knows are still known; framed where the pair itself is.",
    )
    return {
        "moved_by_masks": float(np.mean(moved)),
        "others_lost_masked_in_one_head": costs.tolist(),
        "itself_known_masked_in_one_head": [int(masked.known[:, head][own].sum()) for head in range(HEADS)],
    }


def _table(found: HeadMemory, masked: MaskedHeads, facts: Facts) -> Table:
    """What each head's memory attends to, and what masks change."""
    rows: list[list[Cell]] = []
    own = np.eye(len(facts), dtype=np.bool_)
    for head in range(HEADS):
        attention, lead = found.attention[head], found.lead[head]
        ranks = (attention > attention[own][:, None]).sum(axis=1)
        before, after = found.pattern[None, :, head, 0], masked.pattern[:, :, head, 0]
        known, lost = masked.known[:, head], masked.lost(found.known)[:, head]
        rows.append(
            [
                f"head {head + 1}",
                f"{int((ranks == 0).sum())} of {len(facts)}",
                f"{int((ranks < 5).sum())} of {len(facts)}",
                f"{100 * np.abs(lead[own]).sum() / np.abs(lead).sum():.0f} %",
                f"{np.abs(after - before).mean():.3f}",
                f"{100 * ((after > 0.5) != (before > 0.5)).mean():.1f} %",
                f"{lost.sum(axis=1).mean():.1f}",
                f"{int((known[own] & found.known).sum())} of {int(found.known.sum())}",
            ]
        )
    columns = (
        "", "attends most to the pair itself", "itself among the best 5", "share of the lead from the pair itself",
        "change of its softmax under a mask, mean", "softmax turns to the other token",
        "others lost, masked in this head", "the pair itself still known",
    )  # fmt: skip
    return Table(
        "head-memory",
        "The memory of each head over all 25 pairs, and with each of them masked in turn. Shares are of magnitudes.",
        columns,
        rows,
    )
