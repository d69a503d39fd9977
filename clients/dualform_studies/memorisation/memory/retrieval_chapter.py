"""One prediction of the trained network as two levels of retrieval."""

from __future__ import annotations

import numpy as np

from dualform.query.engine import Engine
from dualform_studies.memorisation.memory import tables
from dualform_studies.memorisation.memory.retrieval import ask_two_levels, most_divided, scores_over_training
from dualform_studies.memorisation.memory.retrieval_figures import draw_scores, draw_two_levels
from dualform_studies.memorisation.transformer.facts import TOKENS, Facts
from dualform_studies.memorisation.transformer.network import AttentionOnly
from dualform_studies.memorisation.transformer.training import QUERY_SET
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page


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
    lead, loud = float(found.total[true] - found.total[rival]), float(np.abs(margin).sum())
    page.paragraph(
        f"The lead is {lead:.1f} nats: {margin.sum():+.1f} from the training's values through the heads, "
        f"{found.initial[true] - found.initial[rival]:+.1f} from their initial values, and "
        f"{found.residual[true] - found.residual[rival]:+.1f} from the second token's own stream. For and against, the "
        f"training pairs say {loud:.1f} nats in all."
    )
    page.figure(
        draw_scores(folder / "scores.png", scores_over_training(memory, pair), name),
        f"First level over time: the attention weight of each token of `{name}` with the slots of every step. Slots of "
        "one step, token and place hold the same key, so ten lines stand for all of them.",
    )
    page.show(tables.top_slots(memory, facts, pair))
    page.paragraph(
        f'Ask for more: `dualform topk RUN --layer value --query {QUERY_SET}/{2 * pair} --where "step < 100"`.'
    )
    return {
        "pair": name,
        "next_token": TOKENS[true],
        "rival": TOKENS[rival],
        "lead": lead,
        "from_training": float(margin.sum()),
        "from_training_absolute": loud,
        "attention_to_first": found.pattern[:, 0].tolist(),
    }
