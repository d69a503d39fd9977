"""The lint of prose finds turns and old words in text, with their lines, and passes over code."""

from __future__ import annotations

import pytest
from docs.site import prose
from docs.site.prose import OLD, ROOT, TURNS, docstrings, faults, main, pages

PLAIN = "You record a training, and then you ask which inputs a prediction attends to. " * 10


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        ("noun clause", "You see, what the layer took."),
        ("noun clause", "Whoever asks gets an answer."),
        ("where for if or when", "Where it asks for tokens, so do the pages."),
        ("of one's own", "Take a name of your own."),
        ("is said, is told", "The step is told by the metadata."),
        ("beside, behind", "The file is beside the keys."),
        ("alone for only", "It stores keys alone."),
        ("that of, likewise", "The rate is that of the optimizer."),
        ("is no X", "The folder has no memory."),
        ("fronted Of", "Of several, name one."),
        ("archaic", "The layers are built anew."),
        ("stands, lies for is", "The reason stands in the file."),
    ],
)
def test_a_turn_is_found_with_its_line(turn, text):
    turns, old, _ = faults(f"# A heading\n\n{text}\n")
    assert [found.partition(": ")[2].partition(":")[0] for found in turns] == [turn]
    assert turns[0].startswith("3: ")
    assert old == []


@pytest.mark.parametrize(
    "word",
    ["probes", "toward", "replayed", "dualform forget", "signed scores", "grade", "standing", "galleries", "masked"],
)
def test_an_old_word_is_found_also_in_a_table(word):
    _, old, _ = faults(f"| a | b |\n| --- | --- |\n| here {word} | |\n")
    assert len(old) == 1
    assert repr(word) in old[0]


def test_code_is_passed_over():
    block = "    probes/  what the\n\n```python\nmask = probe  # what the\n```\n"
    text = f"`probes/` and `mask=`\n\n{block}\n<!-- what the\nprobe -->\n"
    assert faults(text)[:2] == ([], [])


def test_a_padding_mask_is_one():
    assert faults("Give a padding mask.")[1] == []


def test_every_pattern_is_tried_above():
    assert len(TURNS) == 11
    assert len(OLD) == 9


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PLAIN, 0),
        (PLAIN + "The file is behind it.", 0),
        (PLAIN + "The file is behind it. The other is behind it.", 1),
        (PLAIN + "It has a probe.", 1),
    ],
)
def test_a_page_fails_beyond_the_rate_or_for_one_old_word(text, code, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert main([str(page)]) == code
    assert (f"{page}:1: " in capsys.readouterr().out) == (text != PLAIN)


def test_results_and_decisions_are_not_among_the_pages():
    found = {page.relative_to(ROOT).as_posix() for page in pages()}
    assert {"README.md", "docs/index.md", "docs/howto/sql.md"} <= found
    assert not [page for page in found if page.startswith(("docs/decisions", "docs/reproduction", "docs/benchmarks"))]


def test_the_docstrings_of_classes_methods_and_fields_are_read_and_no_private_ones():
    found = docstrings()
    assert {"dualform.record.recorder.Recorder", "dualform.answers.hits.Hits", "dualform.influence.walk.ledger"} <= set(
        found
    )
    hits = found["dualform.answers.hits.Hits"]
    assert "The best slots of each query" in hits  # of the class
    assert "The slot space of `ids`." in hits  # of a field
    assert "`table` with the columns of each slot" in hits  # of a method
    assert "A training came to its end" not in found["dualform.record.recorder.Recorder"]  # of a private method


@pytest.mark.parametrize(("second", "code"), [(PLAIN, 0), ("The file is behind it. It lies there.", 1)])
def test_docstrings_count_together(second, code, monkeypatch, capsys):
    first = PLAIN + "The file is behind it."
    monkeypatch.setattr(prose, "pages", list)
    monkeypatch.setattr(prose, "docstrings", lambda: {"one": first, "two": second})
    assert main([]) == code
    assert ("two:1: " in capsys.readouterr().out) == bool(code)
