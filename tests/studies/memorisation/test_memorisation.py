from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.memorisation import attention
from dualform_studies.memorisation.retrieval import ask_two_levels, most_divided
from dualform_studies.memorisation.study import run_memorisation
from dualform_studies.memorisation.transformer import HEADS, NAMES, PAIRS, WAYS, Recipe, draw_facts
from tests.reliability import soaking
from tests.studies.conftest import sketching
from tests.studies.memorisation.oracle import Watched

RECIPE = Recipe(
    steps=30, later_steps=5, own_steps=10, seeds=2, most_heads=3, arrangements=1, grid=24, simplex=6
)  # fmt: skip
FACTS = draw_facts(2)


FIGURES = [pytest.param("drawn", marks=pytest.mark.soak)] if soaking() else ["blank"]


@pytest.fixture(scope="module", params=FIGURES)
def miniature(request: pytest.FixtureRequest, coarse_figures: None, tmp_path_factory: pytest.TempPathFactory):
    """The whole study with few steps and coarse maps: its folder, report and what progress was told. Its figures are
    drawn where there is time, and blank otherwise."""
    out, told = tmp_path_factory.mktemp("memorisation") / "run", []
    assignment = Assignment(out, seed=2, progress=lambda *line: told.append(line))
    with pytest.MonkeyPatch.context() as patch, sketching() if request.param == "blank" else nullcontext():
        patch.setattr(attention, "draw_level_lines", partial(attention.draw_level_lines, frames=2))
        return out, run_memorisation(assignment, RECIPE), told


@pytest.fixture(scope="module")
def memory(miniature):
    with dualform.open(miniature[0]) as memory:
        yield memory


@pytest.fixture(scope="module")
def watched():
    return Watched(FACTS, RECIPE, 2)


def test_slots_say_pair_token_and_label(memory):
    found = memory.slots(np.arange(7 * 50, 8 * 50), "token")
    assert set(found["step"]) == {7}
    assert [f + s for f, s in zip(found["first"], found["second"], strict=True)][::2] == NAMES
    assert "".join(found["token"]) == "".join(NAMES)
    assert found["label"][::2].tolist() == FACTS.tolist()
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


def test_claims_name_the_second_study_and_are_sentences(miniature):
    claims = miniature[1]["claims"]
    assert claims
    for claim in claims:
        assert claim["section"].startswith("second study, ")
        assert claim["claim"].endswith(".")
        assert claim["paper"] != "-"
    # Two seeds are too few to test what heads share.
    assert not any(claim["claim"].startswith("Heads alone") for claim in claims)


def test_each_seed_is_trained_once_with_three_heads_and_progress_is_told_to_its_end(miniature):
    """What heads know alone, free training beside boosting, and three of many heads are of the same networks."""
    told = miniature[2]
    assert sum(f"{HEADS} heads at once" == line[0] and line[1] == line[2] for line in told) == 1
    assert not any(line[0].startswith(WAYS["free"]) for line in told)
    assert {("training (recorded)", 30, 30), ("setting parameters by hand", 2, 2)} <= set(told)
