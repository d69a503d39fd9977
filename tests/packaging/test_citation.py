"""CITATION.cff says what its format wants, and cites the paper."""

from __future__ import annotations

import yaml

from tests.packaging.contents import ROOT


def test_the_citation_is_whole():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert said["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "type", "license"} <= said.keys()
    assert said["authors"] == [{"name": "The dualform developers"}]
    (paper,) = said["references"]
    assert [person["family-names"] for person in paper["authors"]] == ["Irie", "Csordás", "Schmidhuber"]
    assert paper["title"].startswith("The Dual Form of Neural Networks Revisited")
    assert (paper["type"], paper["year"], paper["volume"]) == ("conference-paper", 2022, 162)
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")
