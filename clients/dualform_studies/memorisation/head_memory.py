"""What each head's memory attends to, before and after a pair is masked.

Which training pairs each head's memory attends to, and what becomes of it when one is masked.

Shapes: P pairs that are asked about, P training pairs, H heads, S tokens of a pair, N words.

The heads read one stream, so they share the first level: the attention weights of a token with all slots. What is a
head's own is where its softmax sends them, and what its rows of the values hold. For a pair p that is asked about,

    attention[h, p, q] = sum_j a_hpj  sum_(t in pair q)  x_t . x_pj
    lead[h, p, q]      = sum_j a_hpj  (u_true - u_rival) . O_h (what pair q added to V_h) x_pj

A mask on a pair takes its column out of both, and nothing else from the first level. Through the sums of query and key
it also moves a: then the other columns change.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform.questions import QuerySetExamples
from dualform_studies.figures import new_figure
from dualform_studies.memorisation.left_out import Omission
from dualform_studies.memorisation.masks import grid_of_pairs
from dualform_studies.memorisation.retrieval import moved_values
from dualform_studies.memorisation.transformer import (
    HEAD_WIDTH,
    HEADS,
    LENGTH,
    PROJECTIONS,
    QUERY_SET,
    TOKENS,
    WIDTH,
    AttentionOnly,
    Facts,
    with_weights,
)
from dualform_studies.report import Cell, Page, Report, Table, report_folder


@dataclass(frozen=True, eq=False)
class HeadMemory:
    """Every pair asked about, by head."""

    scores: NDArray[np.float64]
    """float64[P, S, P]: first level, attention weights of each token summed over the slots of each training pair."""
    pattern: NDArray[np.float64]
    """float64[P, H, S]: second level, how much each head attends to each token."""
    lead: NDArray[np.float64]
    """float64[H, P, P]: what each training pair adds to the lead of the true next token over its strongest rival."""
    known: NDArray[np.bool_]
    """bool[P]: which pairs the network knows with nothing masked."""

    @property
    def attention(self) -> NDArray[np.float64]:
        """float64[H, P, P]."""
        return attended(self.scores, self.pattern)


@dataclass(frozen=True, eq=False)
class MaskedHeads:
    """The same with one training pair masked, for each pair in turn: [pair left out, ...]."""

    scores: NDArray[np.float64]
    """float64[P, P, S, P]: of the slots that stay; 0 for the pair left out."""
    pattern: NDArray[np.float64]
    """float64[P, P, H, S]: with the pair masked in query and key."""
    known: NDArray[np.bool_]
    """bool[P, H, P]: which pairs are known with the pair masked in the projections of one head alone."""

    def lost(self, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """bool[P, H, P]: of the pairs known `before`, bool[P], those other than the one masked that no longer are."""
        return np.asarray(before & ~self.known & ~np.eye(len(before), dtype=np.bool_)[:, None])


def attended(scores: NDArray[np.float64], pattern: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[H, P, P] of [P, S, P] and [P, H, S]: the first level, divided between the tokens by the second."""
    return np.asarray(np.einsum("psq,phs->hpq", scores, pattern))


@torch.no_grad()
def ask_heads(memory: Engine, network: AttentionOnly, facts: Facts) -> HeadMemory:
    exact = deepcopy(network).double()
    stream = exact.stream(exact.embed(facts.pairs))
    pattern = exact.pattern(stream)
    logits = exact(facts.pairs)
    true = torch.nn.functional.one_hot(facts.next_tokens, logits.shape[1]).bool()
    rivals = logits.masked_fill(true, -torch.inf).argmax(dim=1)
    directions = exact.unembedding.weight[facts.next_tokens] - exact.unembedding.weight[rivals]
    _, moved = moved_values(memory, facts)
    outputs = exact.output.weight.reshape(WIDTH, HEADS, HEAD_WIDTH)
    lead = torch.einsum("pd,dhe,phs,qhec,psc->hpq", directions, outputs, pattern, moved, stream)
    return HeadMemory(_scores(memory, len(facts)), pattern.numpy(), lead.numpy(), facts.right(logits))


@torch.no_grad()
def ask_masked(memory: Engine, network: AttentionOnly, facts: Facts, singles: Sequence[Omission]) -> MaskedHeads:
    """`singles` leave out each pair in turn."""
    stream = network.stream(network.embed(facts.pairs))
    pattern = [one.networks["query and key"].pattern(stream).double().numpy() for one in singles]
    scores = [_scores(memory, len(facts), one.where) for one in singles]
    known = [
        [facts.right(_one_head(network, one.networks["projections"], head)(facts.pairs)) for head in range(HEADS)]
        for one in singles
    ]
    return MaskedHeads(np.stack(scores), np.stack(pattern), np.array(known))


def _scores(memory: Engine, pairs: int, where: str | None = None) -> NDArray[np.float64]:
    """float64[P, S, P]; training pairs of which no slot stays have a sum of 0."""
    asked = QuerySetExamples(QUERY_SET, tuple(range(pairs)))
    found = memory.group_sum("value", asked, by="sample", where=where)
    sums = np.zeros((LENGTH * pairs, pairs))
    sums[:, [sample for (sample,) in found.groups]] = found.sums
    return sums.reshape(pairs, LENGTH, pairs)


def _one_head(trained: AttentionOnly, masked: AttentionOnly, head: int) -> AttentionOnly:
    """The trained network with one head's rows of query, key and value from the masked one."""
    rows = slice(HEAD_WIDTH * head, HEAD_WIDTH * (head + 1))
    weights = {name: weight.clone() for name, weight in trained.state_dict().items()}
    for layer in PROJECTIONS:
        weights[f"{layer}.weight"][rows] = masked.state_dict()[f"{layer}.weight"][rows]
    return with_weights(weights)


def draw_attention_by_pair(path: Path, found: HeadMemory, facts: Facts) -> Path:
    """Above what each head's memory attends to, below what this adds to the lead of the true next token."""
    rows: Sequence[tuple[NDArray[np.float64], str, str]] = (
        (found.attention, "PuOr_r", "attention weights, summed\nby training pair"),
        (found.lead, "RdBu_r", "added to the lead of the\ntrue next token (nats)"),
    )
    with new_figure(path, 5.6) as figure:
        axes = figure.subplots(2, HEADS, sharex=True, sharey=True)
        for panels, (values, colours, label) in zip(axes, rows, strict=True):
            limit = float(np.abs(values).max())
            # Leads range over orders of magnitude: equal steps of colour are equal factors beyond a hundredth.
            style: Any = {"cmap": colours, "norm": SymLogNorm(limit / 100, vmin=-limit, vmax=limit)}
            for head, panel in enumerate(panels):
                drawn = _by_pairs(panel, values[head], **style)
                panel.set_title(f"head {head + 1}")
            panels[0].set_ylabel("pair asked about")
            bar = figure.colorbar(drawn, ax=panels, shrink=0.85, pad=0.01)
            bar.set_label(label)
            decades = 10.0 ** np.arange(np.floor(np.log10(limit)) - 1, np.log10(limit))
            bar.set_ticks(
                [*-decades[::-1], 0, *decades], labels=[f"{tick:g}" for tick in (*-decades[::-1], 0, *decades)]
            )
            bar.minorticks_off()
        for panel in axes[-1]:
            panel.set_xlabel("training pair")
    return path


def draw_shifts(path: Path, found: HeadMemory, masked: MaskedHeads, lost: NDArray[np.bool_]) -> Path:
    """How each head's attention to the first token moves with a pair masked in query and key; a cross at each pair
    asked about that is lost, bool[P, P]."""
    shift = masked.pattern[..., 0] - found.pattern[None, :, :, 0]
    crosses = np.argwhere(lost)
    with new_figure(path, 3.1) as figure:
        axes = figure.subplots(1, HEADS, sharex=True, sharey=True)
        for head, panel in enumerate(axes):
            drawn = _by_pairs(panel, shift[:, :, head], cmap="RdBu_r", vmin=-1, vmax=1)
            panel.plot(crosses[:, 1], crosses[:, 0], "x", color="black", markersize=2.6, markeredgewidth=0.8)
            panel.set_title(f"head {head + 1}")
            panel.set_xlabel("pair asked about")
        axes[0].set_ylabel("training pair masked")
        figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.01).set_label("change of the attention\nto the first token")
    return path


def draw_masked_heads(path: Path, found: HeadMemory, masked: MaskedHeads) -> Path:
    """For each pair masked in one head alone: how many of the other pairs are still known, and whether it is itself."""
    own, known = np.eye(len(masked.known), dtype=np.bool_), masked.known & found.known
    with new_figure(path, 2.7) as figure:
        axes = figure.subplots(1, HEADS, sharey=True)
        for head, panel in enumerate(axes):
            others, itself = (known[:, head] & ~own).sum(axis=1), known[:, head][own]
            drawn = grid_of_pairs(panel, others.tolist(), itself.tolist())
            panel.set_title(f"masked in head {head + 1} alone")
            panel.set_xlabel("second token of the pair")
        axes[0].set_ylabel("first token of the pair")
        figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.01).set_label("other pairs still known\n(of 24)")
    return path


def _by_pairs(panel: Axes, values: NDArray[np.float64], **style: Any) -> Any:
    """Rows and columns of 25 pairs, in groups of their first token; a frame around each pair with itself."""
    drawn = panel.imshow(values, interpolation="nearest", **style)
    side = len(TOKENS)
    borders = np.arange(1, side) * side - 0.5
    panel.hlines(borders, -0.5, side * side - 0.5, color="0.4", linewidth=0.4)
    panel.vlines(borders, -0.5, side * side - 0.5, color="0.4", linewidth=0.4)
    middles, names = np.arange(side) * side + 2, [f"{token}." for token in TOKENS]
    panel.set_xticks(middles, names)
    panel.set_yticks(middles, names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return drawn


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
