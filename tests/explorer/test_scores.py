"""Scores of other packages: read as their packages write them, and shown beside ours."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import dualform
from dualform.errors import BadInput
from dualform_explorer.memories import Beside, RememberedAnswers, read_scores
from dualform_explorer.panels.data import scores_panel
from dualform_explorer.server import explore
from dualform_explorer.state import State
from dualform_explorer.view import View
from tests.explorer.served import Served

STATE = State("", "shapes", 3, "4", ("dataset", "label"))
SAMPLES, EXAMPLES = 60, 60


def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(SAMPLES, EXAMPLES)).astype(np.float32)


def write_as_bergson(folder, scores, kind="float32", written=None, **about):
    """The layout of bergson 2.5's `MemmapSequenceScoreWriter`: a score and whether it was written, column by column."""
    size = np.dtype("<u2" if kind == "bfloat16" else kind).itemsize
    pair = 1 << size.bit_length()
    names = [f"{own}_{place}" for place in range(scores.shape[1]) for own in ("score", "written")]
    offsets = [own for place in range(scores.shape[1]) for own in (place * pair, place * pair + size)]
    record = {
        "names": names,
        "formats": [kind, "bool"] * scores.shape[1],
        "offsets": offsets,
        "itemsize": -(-pair * scores.shape[1] // 8) * 8,
    }
    rows = np.zeros(
        len(scores),
        np.dtype({**record, "formats": ["<u2", "bool"] * scores.shape[1]}) if kind == "bfloat16" else np.dtype(record),
    )
    for place in range(scores.shape[1]):
        column = scores[:, place].astype(np.float32)
        rows[f"score_{place}"] = (column.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else column
        rows[f"written_{place}"] = True if written is None else written
    folder.mkdir()
    rows.tofile(folder / "scores.bin")
    told = {"attribute_tokens": False, "num_items": len(scores), "num_rows": len(scores), "num_scores": scores.shape[1]}
    (folder / "info.json").write_text(json.dumps({**told, "dtype": record, **about}))
    return folder


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_folder_of_bergson_is_read(tmp_path, info, kind):
    written = np.arange(SAMPLES) != 7
    folder = write_as_bergson(tmp_path / "scores", values(), kind, written)
    found = read_scores(f"{folder};dataset=shapes;set=shapes", info)
    assert np.isnan(found.values[7]).all()
    rounding = {"float32": 0, "float16": 2**-10, "bfloat16": 2**-7}[kind]
    np.testing.assert_allclose(found.values[written], values()[written], rtol=rounding)
    np.save(folder / "candidates.npy", np.arange(SAMPLES) + 100)
    assert read_scores(f"{folder};dataset=shapes;set=shapes", info).samples.tolist() == list(range(100, 100 + SAMPLES))


def test_an_array_is_read(tmp_path, info):
    np.save(tmp_path / "trak.npy", values())
    found = read_scores(f"{tmp_path / 'trak.npy'};dataset=noise <b>;set=noise", info)
    assert (found.name, found.dataset, found.query_set) == ("trak", "noise <b>", "noise")
    np.testing.assert_array_equal(found.values[:, 5], values()[:, 5])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "several datasets"),
        (";dataset=none", "no dataset 'none'"),
        (";dataset=shapes", "scores for 60 examples"),  # both query sets have as many
        (";dataset=shapes;set=none", "scores for 60 examples"),
        (";dataset=shapes;colour=red", "'colour' is no option"),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path, info, options, says):
    np.save(tmp_path / "trak.npy", values())
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        read_scores(f"{tmp_path / 'trak.npy'}{options}", info)
    assert refused.value.hint


def test_what_is_no_file_of_scores_is_refused(tmp_path, info):
    tokens = write_as_bergson(tmp_path / "tokens", values(), attribute_tokens=True)
    short = write_as_bergson(tmp_path / "short", values())
    (short / "scores.bin").write_bytes(b"\0" * 100)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("none")
    for path in (tokens, short, *(tmp_path / f"{name}.npy" for name in ("flat", "objects", "text", "missing"))):
        with pytest.raises(BadInput, match=re.escape(str(path))):
            read_scores(f"{path};dataset=shapes;set=shapes", info)


def test_the_panel_shows_both_ends_and_how_far_they_agree(tmp_path, memory, info):
    by_sample = memory.group_sum("4", "shapes/3", by=("dataset", "sample"))
    ours = dict(zip(by_sample.groups, by_sample.sums[0].tolist(), strict=True))
    same = np.full((SAMPLES, EXAMPLES), np.nan, np.float32)
    for (dataset, sample), total in ours.items():
        if dataset == "shapes":
            same[sample, 3] = total
    np.save(tmp_path / "same.npy", same)
    np.save(tmp_path / "turned.npy", -same)
    paths = [f"{tmp_path / name}.npy;dataset=shapes;set=shapes" for name in ("same", "turned")]
    shown = RememberedAnswers(memory, Beside(scores=tuple(read_scores(path, info) for path in paths)))
    first, second = scores_panel(View(shown, info, STATE)).files
    order = sorted((total, -sample) for (dataset, sample), total in ours.items() if dataset == "shapes")[::-1]
    assert [own.sample for own in first.highest] == [-sample for _, sample in order[:12]]
    assert [own.sample for own in first.lowest] == [-sample for _, sample in order[::-1][:12]]
    assert (first.agreement, second.agreement) == (pytest.approx(1.0), pytest.approx(-1.0))
    assert first.samples == len(order)
    assert scores_panel(View(shown, info, replace(STATE, query_set="noise"))).files == ()


def test_pages_show_them_and_two_memories_have_none(tmp_path, folder):
    np.save(tmp_path / "trak.npy", values())
    given = [f"{tmp_path / 'trak.npy'};dataset=shapes;set=shapes;name=TRAK"]
    with explore(folder, scores=given) as pages:
        port = int(pages.url.rsplit(":", 1)[1].strip("/"))
        text = Served(port).get("/explore?item=shapes/3&open=data").text
    part = text[text.index('id="panel-scores"') :]
    assert 'data-scores="TRAK"' in part
    best = np.argsort(-values()[:, 3], kind="stable")[:12].tolist()
    assert [int(own) for own in re.findall(r'data-sample="(\d+)"', part)][:12] == best
    with pytest.raises(BadInput, match="one memory"):
        explore([folder, tmp_path], scores=given)
    with pytest.raises(BadInput, match="several datasets"):
        explore(folder, scores=[str(tmp_path / "trak.npy")])
    assert dualform.open(folder).info().steps > 0
