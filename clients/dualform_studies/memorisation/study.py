"""A small attention-only Transformer learns 25 pairs by heart: its geometry, its heads, and the memory behind it.

After the study "Visualizing small Attention-only Transformers"; what that text could not show, the slots of the
training behind each projection, comes from the recorded memory (the paper's remark 3.5).
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch

from dualform.query.engine import open_memory
from dualform_studies.assignment import Assignment
from dualform_studies.memorisation.attention import (
    edge_claims,
    layer_section,
    measure_edges,
    polynomial_claims,
    polynomial_section,
)
from dualform_studies.memorisation.heads import alone_claims, boosting_section, enough_section, heads_alone
from dualform_studies.memorisation.retrieval import retrieval_section
from dualform_studies.memorisation.simplex import simplex_claims, simplex_section, triangles_of
from dualform_studies.memorisation.torus import alone_section, torus_section, voronoi_claim
from dualform_studies.memorisation.transformer import (
    NAMES,
    PAIRS,
    Recipe,
    draw_facts,
    right,
    train_free,
    train_recorded,
)
from dualform_studies.recorded_memory import verify_report
from dualform_studies.report import Page, Report, bytes_on_disk, check_free


def run_memorisation(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    `steps` updates of the recorded training, and others in proportion; `runs` seeds are trained to be compared. It
    needs no data. Raises AlreadyExists where `out` holds something.
    """
    out, seed, progress = assignment.out, assignment.first_seed, assignment.progress
    check_free(out)
    recipe = recipe or Recipe()
    recipe = recipe if assignment.steps is None else recipe.with_steps(assignment.steps)
    recipe = recipe if assignment.runs is None else replace(recipe, seeds=assignment.runs)
    facts, page = draw_facts(seed), Page(out, "Memorisation: a small attention-only Transformer")
    start = perf_counter()
    network = train_recorded(facts, recipe, seed, out, progress)
    trained = perf_counter()
    with torch.no_grad():
        known = int(right(network(PAIRS), facts).sum())
    page.paragraph(
        "Five tokens, a to e; every one of the 25 pairs has one next token, drawn at random, so that nothing but "
        "memory can know it. One attention layer with three heads of dimension 3 reads a stream of dimension 3; the "
        "layer norm stands right after the word embedding, positions are added after it, and there is no MLP. Trained "
        f"by SGD with momentum {recipe.momentum:g} and learning rate {recipe.lr:g} for {recipe.steps:,} updates on all "
        f"pairs at once (their uniform distribution), the network knows {known} of {len(PAIRS)} pairs. Every matrix is "
        "a linear layer, the embeddings too, which read one-hot vectors; so all of them are recorded."
    )
    seeds = range(seed, seed + recipe.seeds)
    with open_memory(out) as memory:
        report: Report = {
            "study": "memorisation",
            "command": assignment.command("memorisation"),
            "seed": seed,
            "steps": recipe.steps,
            "slots": dict(memory.info().slots),
            "facts": dict(zip(NAMES, facts.tolist(), strict=True)),
            "known": known,
            "verify": verify_report(memory),
            "cancellation": dict(memory.cancellation(where="step < 0")),  # a mask that leaves out all terms
            "disk_bytes": bytes_on_disk(out),
        }
        torus_section(page, network, facts, recipe)
        siblings = train_free(recipe, seeds, progress=progress)
        polynomial_section(page, network, recipe)
        layer_section(page, network, facts, recipe)
        # The first sibling is the recorded network, but for rounding.
        networks = [network, *siblings.networks()[1:]]
        claims = polynomial_claims(networks, recipe.grid)
        claims += edge_claims([measure_edges(one, recipe.grid) for one in networks])
        claims.append(voronoi_claim(networks, list(siblings.facts)))
        alone_section(page, network, facts, recipe)
        triangles = triangles_of(siblings, seeds, recipe.simplex)
        claims += alone_claims(heads_alone(siblings)) + simplex_claims(triangles)
        report |= simplex_section(page, network, facts, triangles)
        for section in (boosting_section, enough_section):
            judged, found = section(page, recipe, seeds, siblings, progress)
            claims += judged
            report |= found
        report["two_levels"] = retrieval_section(page, memory, network, facts)
    report["claims"] = [claim.plain() for claim in claims]
    report["seconds"] = {"training": trained - start, "all": perf_counter() - start}
    page.write(report)
    return report
