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
from dualform_studies.memorisation.basis import basis_chapters
from dualform_studies.memorisation.pattern import pattern_chapters
from dualform_studies.memorisation.retrieval import retrieval_chapter
from dualform_studies.memorisation.torus import heads_chapter, maps_chapter
from dualform_studies.memorisation.transformer import Recipe, draw_facts, train_recorded, train_siblings
from dualform_studies.recorded_memory import verify_report
from dualform_studies.report import Page, Report, bytes_on_disk, check_free

_NO_SLOT = "step < 0"


def run_memorisation(assignment: Assignment, recipe: Recipe | None = None) -> Report:
    """Train, record, ask and draw; the memory is `out` itself, the page and report.json lie in `out/report`.

    `steps` updates of the recorded training, and others in proportion; `runs` seeds are trained to be compared. It
    needs no data. Raises AlreadyExists where `out` holds something.
    """
    out, seed, progress = assignment.out, assignment.first_seed, assignment.progress
    check_free(out)
    recipe = (recipe or Recipe()).with_steps(assignment.steps)
    recipe = recipe if assignment.runs is None else replace(recipe, seeds=assignment.runs)
    facts, page = draw_facts(seed), Page(out, "Memorisation: a small attention-only Transformer")
    start = perf_counter()
    network = train_recorded(facts, recipe, seed, out, progress)
    trained = perf_counter()
    with torch.no_grad():
        known = int(facts.right(network(facts.pairs)).sum())
    page.paragraph(_setup(recipe, known, len(facts)))
    with open_memory(out) as memory:
        slots = dict(memory.info().slots)
        report: Report = {
            "study": "memorisation",
            "command": assignment.command("memorisation"),
            "seed": seed,
            "steps": recipe.steps,
            "slots": slots,
            "facts": dict(zip(facts.names, facts.next_tokens.tolist(), strict=True)),
            "known": known,
            "verify": verify_report(memory),
            "cancellation": dict(memory.cancellation(where=_NO_SLOT)),
            "disk_bytes": bytes_on_disk(out),
        }
        maps_chapter(page, network, facts, recipe)
        seeds = range(seed, seed + recipe.seeds)
        siblings = train_siblings(recipe, seeds, progress=progress)
        # The first of them is the recorded network, but for rounding.
        claims = pattern_chapters(
            page, network, facts, recipe, siblings.networks()[1:], [draw_facts(other) for other in seeds[1:]]
        )
        heads_chapter(page, network, facts, recipe)
        of_heads, found = basis_chapters(page, network, facts, recipe, seeds, siblings, progress)
        claims += of_heads
        report |= found
        report["two_levels"] = retrieval_chapter(page, memory, network, facts)
    report["claims"] = [claim.plain() for claim in claims]
    report["seconds"] = {"training": trained - start, "all": perf_counter() - start}
    page.write(report)
    return report


def _setup(recipe: Recipe, known: int, pairs: int) -> str:
    return (
        "Five tokens, a to e; every one of the 25 pairs has one next token, drawn at random, so that nothing but "
        "memory can know it. One attention layer with three heads of dimension 3 reads a stream of dimension 3; the "
        "layer norm stands right after the word embedding, positions are added after it, and there is no MLP. Trained "
        f"by SGD with momentum {recipe.momentum:g} and learning rate {recipe.lr:g} for {recipe.steps:,} updates on all "
        f"pairs at once (their uniform distribution), the network knows {known} of {pairs} pairs. Every matrix is a "
        "linear layer, the embeddings too, which read one-hot vectors; so all of them are recorded."
    )
