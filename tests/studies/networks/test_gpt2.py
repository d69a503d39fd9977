"""The study of GPT-2 in miniature, on a made-up book: its figures are those of the memory's own keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.networks.document import main
from dualform_studies.networks.gpt2.recipe import Recipe
from dualform_studies.networks.gpt2.study import run_gpt2
from dualform_studies.networks.gpt2.text import Fables
from dualform_studies.pages.folder import Report, report_folder
from dualform_studies.text.corpora import load_corpus
from tests.studies.text.made_up import write_aesop

pytestmark = pytest.mark.filterwarnings("ignore")  # the package's own, of loaders and settings

_RECIPE = Recipe(width=12, blocks=2, heads=2, vocabulary=280, length=16, batch=4, steps=12, lr=1e-2, asked=6, masks=2)
_LAYER = "transformer.h.1.mlp.c_fc"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_aesop(folder)
    return folder


@pytest.fixture(scope="module")
def run(coarse_figures: None, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("runs") / "gpt2"
    return out, run_gpt2(Assignment(out=out, data=data, seed=1), _RECIPE)


@pytest.fixture(scope="module")
def fables(data: Path) -> Fables:
    return Fables(load_corpus("aesop", data), _RECIPE)


def test_every_layer_is_recorded_and_exact(run: tuple[Path, Report]) -> None:
    report = run[1]
    assert len(report["verify"]) == 2 + 4 * _RECIPE.blocks + 1
    assert all(one["exact"] and one["reconstruction_error"] < 1e-4 for one in report["verify"].values())
    assert all("LayerNorm" in reason for reason in report["skipped"].values())
    assert report["predictions"]["as_the_network"] == 1.0
    assert report["nats"]["network"] > 0


def test_slots_know_their_token_and_the_one_that_follows(run: tuple[Path, Report], fables: Fables) -> None:
    with dualform.open(run[0]) as memory:
        slots = memory.sql("SELECT place, sample, position, fable, label FROM slots").arrays
    assert len(slots["place"]) == _RECIPE.steps * _RECIPE.batch * _RECIPE.length
    np.testing.assert_array_equal(slots["place"], slots["sample"] * _RECIPE.length + slots["position"])
    np.testing.assert_array_equal(slots["label"], fables.train.ids[slots["place"] + 1])
    np.testing.assert_array_equal(slots["fable"], fables.fables[slots["place"]])
    assert set(fables.titles) == {fables.corpus.title(int(start)) for start in fables.train.starts}


def test_a_slots_token_is_found_in_its_passage(run: tuple[Path, Report], fables: Fables) -> None:
    with dualform.open(run[0]) as memory:
        slots = memory.sql("SELECT sample, position, place FROM slots ORDER BY slot LIMIT 40").records()
        shown = memory.previews([slot["sample"] for slot in slots], "aesop")
        for slot, own in zip(slots, shown, strict=True):
            start, end = (int(at[slot["place"]]) for at in (fables.train.starts, fables.train.ends))
            marked = own.marked(slot["position"])
            assert (marked is None) == (start == end)
            if marked is not None:
                assert marked[1] == fables.train.text[start:end]
                assert "".join(marked) in fables.train.text
        last = len(fables.passages(fables.test)) - 1
        (text,) = memory.previews([last], query_set="test").texts
        assert text is not None
        assert fables.test.text[fables.test.starts[last * 16] :].startswith(text)


def test_examples_and_likeness_are_those_of_every_key(run: tuple[Path, Report], fables: Fables) -> None:
    out, report = run
    with dualform.open(out) as memory:
        info = next(layer for layer in memory.info().layers if layer.name == _LAYER)
        keys = memory.keys(_LAYER, np.arange(info.slots)).astype(np.float64)
        slots = memory.slots(np.arange(info.slots), "token")
        queries = memory.query_set("test", _LAYER).queries.astype(np.float64)
    learned = slots["position"] < _RECIPE.length - 1
    for example in report["examples"]:
        scores = np.where(learned, keys @ queries[example["row"]], -np.inf)
        (told,) = (one for one in example["layers"] if one["layer"] == _LAYER)
        assert told["score"] == pytest.approx(scores.max(), rel=1e-5)
        assert told["place"] == slots["place"][scores.argmax()]
        weights = np.where(learned, np.abs(scores), 0.0)
        share = weights[slots["sample"] == told["passage"]].sum() / weights.sum()
        assert told["share"] == pytest.approx(share, rel=1e-5)
        slot_share = (learned & (slots["sample"] == told["passage"])).sum() / learned.sum()
        assert told["times_slots"] == pytest.approx(share / slot_share, rel=1e-5)
    assert list(report["likeness"]["layers"]) == report["agreement"]["layers"]
    assert _LAYER in report["likeness"]["layers"]
    assert not any(name.startswith("transformer.w") for name in report["likeness"]["layers"])


def test_masks_move_predictions_and_the_page_tells_by_how_much(run: tuple[Path, Report]) -> None:
    out, report = run
    own = {example["passage"] for example in report["examples"]}
    assert [mask["passage"] in own for mask in report["masks"]] == [True] * len(own) + [False] * _RECIPE.masks
    assert len({mask["passage"] for mask in report["masks"]}) == len(report["masks"])
    with dualform.open(out) as memory:
        read = set(memory.sql("SELECT DISTINCT sample FROM slots").arrays["sample"].tolist())
    assert all(mask["passage"] in read for mask in report["masks"])
    for mask in report["masks"]:
        assert len(mask["changes"]) == report["predictions"]["asked"]
        assert np.abs(mask["changes"]).max() > 0
        assert 0 < mask["share"] <= 1
        assert 0 < mask["greatest"] <= mask["furthest"]
    rows = next(table for table in report["tables"] if table["name"] == "masks")["rows"]
    example, mask = report["examples"][0], report["masks"][0]
    moves = np.abs(mask["changes"])
    less = (moves < moves[example["prediction"]]).sum() / (len(moves) - 1)
    assert rows[0][2].startswith(f"{mask['changes'][example['prediction']]:+.2g}")
    assert rows[0][3].startswith(f"{100 * less:.0f} %")
    assert rows[-1][1:4] == ["drawn at random", "-", "-"]


def test_the_page_names_the_commands_that_were_asked(run: tuple[Path, Report]) -> None:
    out, report = run
    page = (report_folder(out) / "index.md").read_text()
    assert f"`{report['command']}`" in page
    for command in ("info RUN", "verify RUN", "topk RUN --layer LAYER --query test/ROWS -k 10", "weights RUN"):
        assert f"dualform {command}" in page
    assert len(report["commands"]) == len(set(report["commands"])) <= 8


def test_the_query_set_has_the_tokens_that_follow_as_its_labels(run: tuple[Path, Report], fables: Fables) -> None:
    with dualform.open(run[0]) as memory:
        labels = memory.query_set("test").labels
    count = fables.passages(fables.test).size
    np.testing.assert_array_equal(labels[: count - 1], fables.test.ids[1:count])


def test_the_page_is_made_again_from_the_report_alone(run: tuple[Path, Report], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "gpt2" / "report"
    folder.mkdir(parents=True)
    shutil.copy(report_folder(run[0]) / "report.json", folder)
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(tmp_path)])
    assert told.exit_code == 0, told.output
    for name in ("index.md", "report.json", "likeness.png", "agreement.png"):
        assert (folder / name).read_bytes() == (report_folder(run[0]) / name).read_bytes()
    text = (tmp_path / "results" / "networks.md").read_text()
    assert run[1]["subject"][1:] in text
    assert "| resnet18 | not run | - | - |" in text
    assert "](networks/gpt2/likeness.png)" in text
    assert (tmp_path / "results" / "networks" / "gpt2" / "likeness.png").is_file()
    assert "**The status of each layer.** " in text
