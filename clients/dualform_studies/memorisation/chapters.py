"""What the trained network is: its maps, its heads, and how else it could be trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dualform_studies.memorisation import tables
from dualform_studies.memorisation.boosting import train_ways
from dualform_studies.memorisation.boosting_figure import draw_ways
from dualform_studies.memorisation.facts import Facts
from dualform_studies.memorisation.network import HEADS, AttentionOnly
from dualform_studies.memorisation.simplex import over_simplex
from dualform_studies.memorisation.simplex_figures import draw_inputs, draw_simplexes
from dualform_studies.memorisation.sphere_figure import draw_sphere
from dualform_studies.memorisation.torus import attention_maps, class_map, word_angles
from dualform_studies.memorisation.torus_figures import draw_attention, draw_class_map, draw_panels
from dualform_studies.memorisation.training import Recipe
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.pages.page import Page
from dualform_studies.progress import Progress


def maps_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """The torus and the sphere."""
    folder, angles = report_folder(page.run), word_angles(network)
    page.heading("The network on the torus")
    page.paragraph(
        "The layer norm puts every word on one circle, so the network maps two angles to a next token. Opposite sides "
        "of the square are one and the same. The pairs form a grid, since a word has the same angle in either place."
    )
    drawn = draw_class_map(folder / "class-map.png", class_map(network, recipe.grid), facts, angles)
    page.figure(
        drawn,
        "Left: the most likely next token at each point of the torus, the fainter the less likely, with its letter; "
        "each mark is a pair in the colour and shape of its true next token, and letters at the top and right say "
        "which words. Right: the words.",
    )
    drawn = draw_sphere(folder / "unembedding.png", network, facts)
    page.figure(
        drawn,
        "The unembedding as a map of the sphere: the token that a stream of each direction gives (weighted Voronoi "
        "cells). The named marks are the images of the 25 pairs after the attention layer, in the colour and shape of "
        "their true next token; white dots are the directions of the unembedding's own rows.",
    )


def heads_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> Report:
    """Attention patterns, heads alone, and the simplex of head weights. Returns the pairs known by heads."""
    folder, angles = report_folder(page.run), word_angles(network)
    page.heading("The heads")
    drawn = draw_attention(folder / "attention.png", attention_maps(network, recipe.grid), facts, angles)
    page.figure(drawn, "How much each head attends to the first token; the line is where both get one half.")
    speaking = {f"head {head + 1} alone": torch.eye(HEADS)[head : head + 1] for head in range(HEADS)}
    speaking["no head"] = torch.zeros(1, HEADS)
    with torch.no_grad():
        alone = {name: facts.right(network(facts.pairs, heads)) for name, heads in speaking.items()}
    panels = {
        f"{name}: {alone[name].sum()} of {len(facts)}": class_map(network, recipe.grid, heads)
        for name, heads in speaking.items()
    }
    drawn = draw_panels(folder / "heads-alone.png", panels, facts, dict.fromkeys(panels, angles), across=4)
    page.figure(
        drawn,
        "The class map when one head speaks alone, at the strength it was trained with, or none does: then only the "
        "second token's own stream is left. In the titles, the pairs that are still known.",
    )
    simplex = over_simplex(network, facts, recipe.simplex)
    page.show(tables.heads(simplex, alone, facts))
    page.paragraph(
        "Were each head to remember pairs of its own, the pairs known by each alone would add up to all of them. The "
        "triangles vary the heads' weights, which sum to 3: the cross in the middle is the network as trained, a "
        "corner is one head alone, three times as strong."
    )
    page.figure(draw_simplexes(folder / "simplex.png", simplex, facts), "Accuracy over the simplex of head weights.")
    page.figure(
        draw_inputs(folder / "simplex-inputs.png", simplex, facts),
        "The same for each pair (pair → next token): the probability of its next token, and in red the border of the "
        "weights with which that token is the most likely one.",
    )
    best = int(simplex.accuracy.argmax())
    return {name: int(right.sum()) for name, right in alone.items()} | {
        "threefold": [
            int(simplex.right[simplex.at(*(3.0 * torch.eye(HEADS)[head]).tolist())].sum()) for head in range(3)
        ],
        "centre": int(simplex.right[simplex.at(1, 1, 1)].sum()),
        "best_on_simplex": int(simplex.right[best].sum()),
    }


def boosting_chapter(page: Page, recipe: Recipe, seeds: Sequence[int], progress: Progress | None) -> Report:
    """Boosted training beside free training. Returns the pairs known by each seed, by way of training."""
    curves = train_ways(recipe, seeds, progress)
    page.heading("Boosted training")
    page.paragraph(
        f"Head 1 learns alone for {recipe.steps:,} updates and is frozen, then head 2 learns for "
        f"{recipe.later_steps:,}, then head 3; the text does not say whether the embeddings go on learning meanwhile, "
        f"so both are run, each with more updates than free training has. {len(seeds)} seeds, each with facts and a "
        "start of its own. Adam stands beside as a comparison: the memory was asked of SGD with momentum, under which "
        "a slot has one coefficient."
    )
    drawn = draw_ways(report_folder(page.run) / "boosting.png", curves, recipe)
    page.figure(
        drawn, "Left: accuracy while training, mean over the seeds. Right: every seed at its end; lines are means."
    )
    page.show(tables.ways(curves))
    return {way: [round(25 * known) for known in curve.accuracy[-1].tolist()] for way, curve in curves.items()}
