"""The Transformer, one and many at once, on the torus; its training recorded; and the whole study in miniature."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.memorisation import attention
from dualform_studies.memorisation.retrieval import ask_two_levels, most_divided
from dualform_studies.memorisation.study import run_memorisation
from dualform_studies.memorisation.torus import (
    cells,
    directions,
    exact_copy,
    images,
    name_places,
    nearest,
    on_circle,
    random_directions,
    torus_maps,
    voronoi_claim,
    word_angles,
)
from dualform_studies.memorisation.transformer import (
    HEADS,
    NAMES,
    PAIRS,
    TOKENS,
    WAYS,
    Recipe,
    boundaries,
    build_network,
    draw_facts,
    ensemble_of,
    learning,
    right,
    train_boosted,
    train_free,
)
from tests.reliability import soaking
from tests.studies.conftest import sketching
from tests.studies.memorisation import oracle
from tests.studies.memorisation.oracle import Watched

FACTS = draw_facts(1)


@pytest.fixture(scope="module", params=[0, 5])
def network(request):
    return oracle.strong_network(request.param)


@pytest.mark.parametrize("heads", [(1.0, 1.0, 1.0), (0.5, 0.0, 2.0)])
def test_patterns_and_logits_are_those_worked_out_by_hand_with_heads_weighed(network, heads):
    w, exact = oracle.weights_of(network), exact_copy(network)
    patterns = exact.pattern(exact.stream(exact.embed(PAIRS))).detach().numpy()
    logits = exact(PAIRS, torch.tensor([heads], dtype=torch.float64)).detach().numpy()
    expected = [
        oracle.forward(w, np.stack([oracle.on_circle(w, token) for token in pair]), heads) for pair in PAIRS.tolist()
    ]
    np.testing.assert_allclose(patterns, [one for one, _ in expected], atol=1e-9)
    np.testing.assert_allclose(logits, [one for _, one in expected], atol=1e-8)
    np.testing.assert_allclose(network(PAIRS, torch.tensor([heads])).detach().numpy(), logits, atol=1e-4)


def test_words_lie_on_a_circle_at_their_angles(network):
    w, angles = oracle.weights_of(network), word_angles(network)
    assert ((angles >= 0) & (angles < 2 * np.pi)).all()
    expected = np.stack([oracle.on_circle(w, token) for token in range(len(TOKENS))])
    np.testing.assert_allclose(on_circle(torch.from_numpy(angles)).numpy(), expected, atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), np.sqrt(3))


def test_maps_hold_the_network_at_the_centres_of_their_cells(network):
    w = oracle.weights_of(network)
    maps = torus_maps(network, 24)
    drawn, alone = maps.classes(), maps.classes((0, 1, 0))
    circle = on_circle(torch.from_numpy((np.arange(24) + 0.5) * 2 * np.pi / 24)).numpy()
    for first, second in [(0, 0), (3, 17), (23, 1), (12, 12)]:
        patterns, logits = oracle.forward(w, np.stack([circle[first], circle[second]]))
        likely = np.exp(logits) / np.exp(logits).sum()
        assert drawn.token[second, first] == logits.argmax()
        assert drawn.probability[second, first] == pytest.approx(likely.max(), abs=1e-9)
        np.testing.assert_allclose(maps.attention[:, second, first], patterns[:, 0], atol=1e-9)
        by_hand = oracle.forward(w, np.stack([circle[first], circle[second]]), (0, 1, 0))[1]
        assert alone.token[second, first] == by_hand.argmax()


def test_cells_are_those_of_the_direction_that_is_looked_at(network):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3))
    across, up = directions(vectors).T
    won = [cells(network, across[at : at + 1], up[at : at + 1])[0, 0] for at in range(40)]
    np.testing.assert_array_equal(won, (vectors @ oracle.weights_of(network)["unembedding"].T).argmax(axis=1))


def test_cells_are_weighted_voronoi_cells():
    network = build_network(3)
    facts = draw_facts(3)
    rows = network.unembedding.weight.detach().double().numpy()
    known = right(network(PAIRS), facts)
    np.testing.assert_array_equal(nearest(images(network), rows) == facts.numpy(), known)
    # By construction, so that it decides nothing: what does is how many pairs lie in the cells of their own.
    assert voronoi_claim([network], [facts]).verdict == "does not hold"
    said = network(PAIRS).detach().argmax(dim=-1)
    claim = voronoi_claim([network], [said])
    assert claim.verdict == "holds"
    assert "by construction, and 100.0 % of the pairs lie in their own" in claim.ours
    drawn = random_directions(500)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1)
    assert np.abs(drawn.mean(axis=0)).max() < 0.1
    winners = (drawn @ rows.T).argmax(axis=1)
    np.testing.assert_array_equal(nearest(7 * drawn, rows), winners)
    # Without weights, the nearest direction wins; with rows of one length that is the same.
    angles = np.arccos(np.clip(drawn @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T, -1, 1))
    np.testing.assert_array_equal(nearest(drawn, rows, weighted=False), angles.argmin(axis=1))
    assert (nearest(drawn, rows, weighted=False) != winners).any()


def test_every_wide_region_is_named_inside_and_off_the_marks():
    classes = np.zeros((100, 100), np.int64)
    classes[:, 60:] = 3
    classes[40:42, :60] = 1
    free = np.ones_like(classes, np.bool_)
    free[:, 65:90] = False
    places = name_places(classes, free)
    assert {one for one, _, _ in places} == {0, 3}
    for one, row, column in places:
        assert (classes[row - 3 : row + 4, column - 3 : column + 4] == one).all()
        assert free[row - 3 : row + 4, column - 3 : column + 4].all()
    # Above and below the stripe.
    assert {row < 40 for one, row, _ in places if one == 0} == {True, False}


RECIPE = Recipe(steps=25, later_steps=8, seeds=2)
SGD = RECIPE.sgd


def test_each_network_is_trained_as_it_would_be_alone():
    ensemble = ensemble_of([3, 4])
    ensemble.train(RECIPE.steps, SGD)
    for member, seed in enumerate([3, 4]):
        facts, network = draw_facts(seed), ensemble.networks()[member]
        alone = Watched(facts, RECIPE, seed).network.state_dict()
        for name, weight in network.state_dict().items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)
        assert ensemble.accuracy[-1][member] == right(network(PAIRS), facts).mean()
    assert ensemble.steps[0] == 0
    assert ensemble.steps[-1] == RECIPE.steps
    assert (ensemble.loss[-1] < ensemble.loss[0]).all()


@pytest.mark.parametrize("embeddings", [True, False])
def test_one_head_learns_and_the_others_stay(embeddings: bool):
    ensemble = ensemble_of([3])
    before = ensemble.networks()[0].state_dict()
    ensemble.train(5, SGD, heads=torch.tensor([[1.0, 1.0, 0.0]]), learns=learning(1, embeddings))
    after = ensemble.networks()[0].state_dict()
    moved = {name: (weight != before[name]).numpy() for name, weight in after.items()}
    head = np.arange(9) // 3 == 1
    for name in ("query", "key", "value", "output"):
        rows = moved[f"{name}.weight"] if name != "output" else moved["output.weight"].T
        assert rows.any(axis=1).tolist() == rows.all(axis=1).tolist() == head.tolist()
    assert {moved[f"{name}.weight"].any() for name in ("word", "position", "unembedding")} == {embeddings}


def test_every_way_is_trained_from_the_same_start():
    free = train_free(RECIPE, [3, 4])
    shared, frozen = (train_boosted(RECIPE, [3, 4], 3, way) for way in ("shared", "frozen"))
    assert [one.steps[-1] for one in (free, shared, frozen)] == [25, 41, 41]
    assert boundaries(RECIPE) == [25, 33, 41]
    # Until head 1 is done, the two ways to boost are one.
    for step in (0, 25):
        np.testing.assert_array_equal(shared.loss[shared.steps.index(step)], frozen.loss[frozen.steps.index(step)])
    assert (shared.loss[-1] != frozen.loss[-1]).all()


def test_every_weighting_answers_and_counts():
    """Against one network trained alone on the same sum of losses."""
    weightings, seed = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]), 3
    counted = torch.rand(1, 2, 25, generator=torch.Generator().manual_seed(0))
    ensemble, facts, network = ensemble_of([seed]), draw_facts(seed), build_network(seed)
    ensemble.train(6, SGD, counted=counted, heads=weightings)
    optimizer = SGD(network.parameters())
    for _ in range(6):
        losses = torch.stack(
            [
                torch.nn.functional.cross_entropy(network(PAIRS, one[None]), facts, reduction="none")
                for one in weightings
            ]
        )
        optimizer.zero_grad()
        ((losses * counted[0]).sum() / 25).backward()
        optimizer.step()
    for name, weight in ensemble.networks()[0].state_dict().items():
        torch.testing.assert_close(weight, network.state_dict()[name], rtol=1e-4, atol=1e-5)
    known = ensemble.right(weightings)
    assert known.shape == (1, 2, 25)
    for one, found in zip(weightings, known[0], strict=True):
        np.testing.assert_array_equal(found, right(network(PAIRS, one[None]).detach(), facts))
    assert ensemble.accuracy[-1] == known[0, 0].mean()


MINIATURE = Recipe(
    steps=30, later_steps=5, own_steps=10, seeds=2, most_heads=3, arrangements=1, grid=24, simplex=6
)  # fmt: skip
STUDIED = draw_facts(2)


FIGURES = [pytest.param("drawn", marks=pytest.mark.soak)] if soaking() else ["blank"]


@pytest.fixture(scope="module", params=FIGURES)
def miniature(request: pytest.FixtureRequest, coarse_figures: None, tmp_path_factory: pytest.TempPathFactory):
    """The whole study with few steps and coarse maps: its folder, report and what progress was told. Its figures are
    drawn where there is time, and blank otherwise."""
    out, told = tmp_path_factory.mktemp("memorisation") / "run", []
    assignment = Assignment(out, seed=2, progress=lambda *line: told.append(line))
    with pytest.MonkeyPatch.context() as patch, sketching() if request.param == "blank" else nullcontext():
        patch.setattr(attention, "draw_level_lines", partial(attention.draw_level_lines, frames=2))
        return out, run_memorisation(assignment, MINIATURE), told


@pytest.fixture(scope="module")
def memory(miniature):
    with dualform.open(miniature[0]) as memory:
        yield memory


@pytest.fixture(scope="module")
def watched():
    return Watched(STUDIED, MINIATURE, 2)


def test_slots_say_pair_token_and_label(memory):
    found = memory.slots(np.arange(7 * 50, 8 * 50), "token")
    assert set(found["step"]) == {7}
    assert [f + s for f, s in zip(found["first"], found["second"], strict=True)][::2] == NAMES
    assert "".join(found["token"]) == "".join(NAMES)
    assert found["label"][::2].tolist() == STUDIED.tolist()
    assert found["sample"][::2].tolist() == list(range(25))


def test_the_sum_over_slots_is_the_live_projection(memory, watched):
    network = watched.network
    stream = network.stream(network.embed(PAIRS)).detach()
    by_hand = stream.reshape(-1, 3).double().numpy() @ (watched.begun + watched.spoken(np.ones(25, bool))).T
    live = network.value(stream).detach().reshape(-1, 9).numpy()
    np.testing.assert_allclose(by_hand, live, atol=2e-5)
    np.testing.assert_allclose(memory.output("value", "pairs"), live, atol=2e-5)


@pytest.mark.parametrize("pair", [0, None])
def test_two_levels_add_up_to_the_live_logits(memory, watched, pair: int | None):
    network = watched.network
    pair = most_divided(network) if pair is None else pair
    found = ask_two_levels(memory, network, pair)
    stream = network.stream(network.embed(PAIRS[pair : pair + 1]))[0].detach().double().numpy()
    scores = np.einsum("tpji,qi->qp", watched.keys, stream)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-4)
    logits = network(PAIRS[pair : pair + 1])[0].detach().numpy()
    np.testing.assert_allclose(found.total, logits, atol=1e-4)
    best = int(logits.argmax())
    rival = found.rival(best)
    margin = found.logits[..., best] - found.logits[..., rival]
    rest = found.residual + found.initial
    lead = margin.sum() + rest[best] - rest[rival]
    assert lead == pytest.approx(np.sort(logits)[-1] - np.sort(logits)[-2], abs=1e-4)
    # One training pair through one token and head, by hand.
    w = {name: p.detach().double().numpy() for name, p in network.state_dict().items()}
    moved = watched.spoken(np.arange(25) == 6)[3:6]
    by_hand = w["unembedding.weight"] @ w["output.weight"][:, 3:6] @ moved @ stream[0] * found.pattern[1, 0]
    np.testing.assert_allclose(found.logits[0, 1, 6], by_hand, atol=1e-5)


def test_the_page_shows_every_figure_and_table(miniature):
    out, report, _ = miniature
    folder = out / "report"
    assert json.loads((folder / "report.json").read_text()) == report
    page = (folder / "index.html").read_text()
    drawn = {path.name for path in folder.glob("*.png")}
    assert drawn == {
        "class-map.png", "unembedding.png", "attention.png", "heads-alone.png", "simplex.png", "simplex-inputs.png",
        "simplex-patterns.png", "boosting.png", "level-line.png", "head-maps.png", "value-maps.png", "layer-maps.png",
        "edges.png", "surfaces.png", "two-levels.png",
    }  # fmt: skip
    assert all(f'src="{name}"' in page and (folder / name).with_suffix(".svg").is_file() for name in drawn)
    assert [table["name"] for table in report["tables"]] == ["claims", "enough", "reconstruction"]
    assert page.index("class-map.png") < page.index('id="claims"') < page.index("unembedding.png")
    assert report["ways"].keys() == WAYS.keys()
    assert all(len(known) == 2 for known in report["ways"].values())
    assert report["slots"] == {"sample": 25 * 30, "token": 50 * 30}
    assert set(report["verify"]) == {"word", "position", "query", "key", "value", "output", "unembedding"}
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())


def test_each_seed_is_trained_once_with_three_heads_and_progress_is_told_to_its_end(miniature):
    """What heads know alone, free training beside boosting, and three of many heads are of the same networks."""
    told = miniature[2]
    assert sum(f"{HEADS} heads at once" == line[0] and line[1] == line[2] for line in told) == 1
    assert not any(line[0].startswith(WAYS["free"]) for line in told)
    assert {("training (recorded)", 30, 30), ("setting parameters by hand", 2, 2)} <= set(told)
