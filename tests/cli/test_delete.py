from __future__ import annotations

import dualform as library
from tests.deletion.test_rewrite import write
from tests.store.small_memory import batches_of


def test_it_says_what_it_does_before_it_does_it(dualform, tmp_path, monkeypatch):
    write(tmp_path / "run", batches_of([6, 6]))
    before = len(library.open(tmp_path / "run").keys("layer-1"))
    gone = int(
        (batches_of([6, 6])[1].samples["sample"] == 3).sum() + (batches_of([6, 6])[0].samples["sample"] == 3).sum()
    )
    monkeypatch.setattr("click.confirm", lambda *asked, **how: False)
    refused = dualform("delete", tmp_path / "run", "--where", "sample = 3")
    assert refused.code == 1
    assert "Nothing was deleted." in refused.err
    for sentence in (
        "with their keys, values and columns.",
        "is kept as one sum, as of the end",
        "norm.seen, norm.weight are kept up to step 1 and as of the end, 1 step later;",
        "This is not unlearning.",
        "so few that the sum spans their keys",
    ):
        assert sentence in refused.err
    assert len(library.open(tmp_path / "run").keys("layer-1")) == before
    done = dualform("delete", tmp_path / "run", "--where", "sample = 3", "--yes", "--json")
    assert done.code == 0
    assert done.json["samples"] == gone > 0
    assert done.json["summed"] == ["layer-0", "layer-1"]
    assert len(library.open(tmp_path / "run").keys("layer-1")) == before - gone
    again = dualform("delete", tmp_path / "run", "--where", "sample = 3", "--yes", "--json")
    assert again.code == 2
    assert again.json["error"]["code"] == "empty_mask"


def test_what_stands_beside_the_slots_is_said(dualform, tmp_path):
    write(tmp_path / "run", batches_of([6, 6]))
    library.delete(tmp_path / "run", "sample = 3")
    shown = dualform("info", tmp_path / "run")
    assert "were deleted; what they brought stands as one sum" in shown.out
