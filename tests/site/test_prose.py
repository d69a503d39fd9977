"""The lint of prose finds turns and old words in text, with their lines, and passes over code."""

from __future__ import annotations

import pytest
from docs.site.prose import OLD, ROOT, TURNS, docstrings, faults, main, pages

PLAIN = "You record a training, and then you ask which inputs a prediction attends to. " * 10
TURNED = {
    "You see, what the layer took.": "noun clause",
    "Whoever asks gets an answer.": "noun clause",
    "Where it asks for tokens, so do the pages.": "where for if or when",
    "Take a name of your own.": "of one's own",
    "The step is told by the metadata.": "is said, is told",
    "The file is beside the keys.": "beside, behind",
    "It stores keys alone.": "alone for only",
    "The rate is that of the optimizer.": "that of, likewise",
    "The folder has no memory.": "is no X",
    "Of several, name one.": "fronted Of",
    "The layers are built anew.": "archaic",
    "The reason stands in the file.": "stands, lies for is",
}
WORDS = ("probes", "toward", "replayed", "dualform forget", "signed scores", "grade", "standing", "galleries", "masked")


def test_turns_and_old_words_are_found_with_their_lines():
    for text, turn in TURNED.items():
        (found,), old, _ = faults(f"# A heading\n\n{text}\n")
        assert found.startswith(f"3: {turn}: ")
        assert old == []
    for word in WORDS:
        (found,) = faults(f"| a | b |\n| --- | --- |\n| here {word} | |\n")[1]
        assert repr(word) in found
    assert faults("Give a padding mask.")[1] == []
    assert (len(set(TURNED.values())), len(WORDS)) == (len(TURNS), len(OLD))


def test_code_is_passed_over():
    block = "    probes/  what the\n\n```python\nmask = probe  # what the\n```\n"
    text = f"`probes/` and `mask=`\n\n{block}\n<!-- what the\nprobe -->\n"
    assert faults(text)[:2] == ([], [])


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


def test_pages_and_public_docstrings_are_read():
    found = {page.relative_to(ROOT).as_posix() for page in pages()}
    assert {"README.md", "docs/index.md", "docs/howto/sql.md"} <= found
    assert not [page for page in found if page.startswith(("docs/decisions", "docs/reproduction", "docs/benchmarks"))]
    texts = docstrings()
    hits = texts["dualform.answers.scores.Hits"]
    assert "The best slots of each query" in hits  # of the class
    assert "The slot space of `ids`." in hits  # of a field
    assert "`table` with the columns of each slot" in hits  # of a method
    assert "A training came to its end" not in texts["dualform.record.recorder.Recorder"]  # of a private method
