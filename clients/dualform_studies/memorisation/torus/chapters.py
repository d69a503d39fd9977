"""The trained network on the torus: its classes, its unembedding, and its heads."""

from __future__ import annotations

import torch

from dualform_studies.memorisation.torus.figures import draw_attention, draw_class_map, draw_panels
from dualform_studies.memorisation.torus.maps import attention_maps, class_map, word_angles
from dualform_studies.memorisation.torus.sphere_figure import draw_sphere
from dualform_studies.memorisation.transformer.facts import Facts
from dualform_studies.memorisation.transformer.network import HEADS, AttentionOnly
from dualform_studies.memorisation.transformer.training import Recipe
from dualform_studies.pages.folder import report_folder
from dualform_studies.pages.page import Page


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


def heads_chapter(page: Page, network: AttentionOnly, facts: Facts, recipe: Recipe) -> None:
    """Attention patterns, and heads alone."""
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
