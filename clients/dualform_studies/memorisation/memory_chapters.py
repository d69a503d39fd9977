"""What the memory knows of the trained network: its projections as retrieval, and what masks make of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dualform.query.engine import Engine
from dualform_studies.memorisation import tables
from dualform_studies.memorisation.facts import TOKENS, Facts
from dualform_studies.memorisation.mask_figures import draw_masked_maps, draw_pairs, draw_sweep
from dualform_studies.memorisation.masks import Omission, sweep_last
from dualform_studies.memorisation.network import AttentionOnly
from dualform_studies.memorisation.retrieval import ask_two_levels, most_divided, scores_over_training
from dualform_studies.memorisation.retrieval_figures import draw_scores, draw_two_levels
from dualform_studies.memorisation.torus import class_map, word_angles
from dualform_studies.memorisation.training import PROBE, Recipe
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page
from dualform_studies.progress import Progress

_MAPPED = {
    "value": "values masked",
    "projections": "all projections masked",
    "whole network": "whole network masked",
    "retrained": "retrained without it",
}
"""Networks whose class maps are drawn, with the words that head their columns."""


def retrieval_chapter(page: Page, memory: Engine, network: AttentionOnly, facts: Facts) -> Report:
    """One prediction as two levels of retrieval (remark 3.5)."""
    folder, pair = report_folder(page.run), most_divided(network, facts)
    found = ask_two_levels(memory, network, facts, pair)
    name, true = facts.names[pair], int(facts.next_tokens[pair])
    margin, rival = found.margin(true)
    page.heading("Two levels of retrieval")
    page.paragraph(
        f"The prediction of `{name}`, the pair about which the heads disagree most. At the first level, key and value "
        "of either token are looked up in all slots of the training by unnormalised attention: `V x = V₀ x + Σ αₜ eₜ`. "
        "At the second level, a softmax chooses between the two tokens, head by head (the paper's remark 3.5). With "
        "the chosen weights given, the logits are a sum over heads, tokens and training pairs, taken apart here."
    )
    page.figure(
        draw_two_levels(folder / "two-levels.png", found, facts),
        f"Rows: the two tokens of `{name}`. Left: first level, the attention weights of all training slots, summed by "
        "training pair (marks: the pair's next token). Right: what each training pair's values offer, through each "
        f"head, to the lead of {TOKENS[true]}, the true next token, over {TOKENS[rival]}, its strongest rival; titles "
        "give the sum, and what the head's attention to the token (second level) lets through.",
    )
    lead = float(found.total[true] - found.total[rival])
    page.paragraph(
        f"The lead is {lead:.1f} nats: {margin.sum():+.1f} from the training's values through the heads, "
        f"{found.initial[true] - found.initial[rival]:+.1f} from their initial values, and "
        f"{found.residual[true] - found.residual[rival]:+.1f} from the second token's own stream. The training pairs "
        f"speak far louder than that, {np.abs(margin).sum():.0f} nats in all, for and against."
    )
    page.figure(
        draw_scores(folder / "scores.png", scores_over_training(memory, pair), name),
        f"First level over time: the attention weight of each token of `{name}` with the slots of every step. Slots of "
        "one step, token and place hold the same key, so ten lines stand for all of them.",
    )
    page.show(tables.top_slots(memory, facts, pair))
    page.paragraph(f'Ask for more: `dualform topk RUN --layer value --query {PROBE}/{2 * pair} --where "step < 100"`.')
    return {
        "pair": name,
        "next_token": TOKENS[true],
        "rival": TOKENS[rival],
        "lead": lead,
        "from_training": float(margin.sum()),
        "from_training_absolute": float(np.abs(margin).sum()),
        "attention_to_first": found.pattern[:, 0].tolist(),
    }


def mask_chapter(
    page: Page, memory: Engine, found: Sequence[Omission], network: AttentionOnly, facts: Facts, recipe: Recipe,
    progress: Progress | None,
) -> Report:  # fmt: skip
    """Pairs and classes left out of the sum, and of the training: `found`, pairs first."""
    folder = report_folder(page.run)
    means = tables.left_out_means(found, facts)
    single = means["pairs"]
    page.heading("What if a pair had been left out")
    page.paragraph(
        "A mask takes the terms of a pair out of the sum as this training left it. It is no retraining: without the "
        "pair every later term would have been another. Beside each mask stands the network that was trained without "
        "the pair, from the same start. On average over the 25 pairs, masking one in query, key and value leaves "
        f"{single['projections']['others']:.0f} % of the other pairs known, in value alone "
        f"{single['value']['others']:.0f} %, in query and key {single['query and key']['others']:.0f} %, in the whole "
        f"network {single['whole network']['others']:.0f} %; of the network retrained without it "
        f"{single['retrained']['others']:.0f} %. The pair left out is itself still known in "
        f"{single['projections']['left_out']:.0f} % of the cases when masked in the projections, and guessed in "
        f"{single['retrained']['left_out']:.0f} % by the network that never saw it; chance is 20 %."
    )
    page.figure(
        draw_pairs(folder / "masked-pairs.png", found, facts),
        "For each pair left out, how many of the other 24 are still known; framed where the pair itself is.",
    )
    cancellation = float(np.median([one.cancellation["value"] for one in found[: len(facts)]]))
    overall = memory.cancellation(where="step < 0", layer="value")["value"]
    shares = np.array([one.share["value"] for one in found[: len(facts)]])
    share, correlation = float(np.median(shares)), _correlation(shares, found[: len(facts)], facts)
    page.paragraph(
        f"The terms of one pair hardly cancel each other: in the value projection their cancellation is "
        f"{cancellation:.1f} (median), since most steps push a pair the same way. They cancel those of other pairs: "
        f"over all slots the figure is {overall:.0f}, and the sum of one pair's terms alone is {share:.1f} times as "
        "large as all that training added (median). So a small cancellation figure of the part left out is no promise "
        "that the rest stands on its own: its share tells. The correlation of its logarithm with the number of other "
        f"pairs that are still known when the values of a pair are masked is {correlation:.2f}."
    )
    _masked_maps(page, found, network, facts, recipe)
    page.show(tables.left_out(found, facts))
    page.heading("What if only its last steps had been left out")
    sweep = sweep_last(memory, facts, recipe, progress)
    half = int(np.abs(np.array(sweep.last) - recipe.steps / 2).argmin())
    page.paragraph(
        "All that came later was learned with what a pair taught early in place; what it taught late has been built "
        f"upon less. With the slots of its last {sweep.last[half]:,} steps left out, "
        f"{100 * sweep.others[half].mean():.0f} % of the other pairs are still known on average, and "
        f"{100 * sweep.itself[half].mean():.0f} % of the pairs left out."
    )
    page.figure(
        draw_sweep(folder / "last-steps.png", sweep),
        f"The slots of one pair in the last steps left out of query, key and value, up to all {recipe.steps:,} steps.",
    )
    return {
        "means": means,
        "median_cancellation_value": cancellation,
        "median_share_value": share,
        "correlation_of_share": correlation,
        "last_steps": {str(n): 100 * float(each.mean()) for n, each in zip(sweep.last, sweep.others, strict=True)},
    }


def _correlation(shares: NDArray[np.float64], found: Sequence[Omission], facts: Facts) -> float:
    """Of the logarithm of a pair's share with how many other pairs its mask on the values leaves known; 0 for none."""
    known = np.array([one.right(facts)["value"][~one.pairs].sum() for one in found])
    return float(np.corrcoef(np.log(shares), known)[0, 1]) if np.ptp(known) and np.ptp(shares) else 0.0


def _masked_maps(page: Page, found: Sequence[Omission], network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """The class maps when the pair that is missed most is left out, and when the largest class is."""
    pairs, classes = found[: len(facts)], found[len(facts) :]
    worst = min(pairs, key=lambda one: int(one.right(facts)["projections"].sum()))
    largest = max(classes, key=lambda one: int(one.pairs.sum()))
    maps = {
        one.name: {
            words: (class_map(changed, recipe.grid), word_angles(changed), facts_known(changed, facts))
            for scope, words in _MAPPED.items()
            for changed in (one.networks[scope],)
        }
        for one in (worst, largest)
    }
    page.figure(
        draw_masked_maps(report_folder(page.run) / "masked-maps.png", maps, facts),
        f"Class maps with something left out: above the pair `{worst.name}`, whose mask on the projections costs most, "
        f"below {largest.name}, all pairs that give it. Masked in the value projection, in query, key and value, or in "
        "the whole network, embeddings included; and the network trained without it.",
    )


def facts_known(network: AttentionOnly, facts: Facts) -> int:
    return int(facts.right(network(facts.pairs).detach()).sum())
