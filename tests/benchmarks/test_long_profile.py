"""The profile of a long training tells windows apart, and leaves nothing behind."""

from __future__ import annotations

from benchmarks.long_profile import MOST, OBJECTS, RESIDENT, main, measure
from benchmarks.recording_profile import PARTS
from click.testing import CliRunner


def test_windows_are_told_apart(tmp_path):
    before = [getattr(owner, name) for _, owner, name in PARTS]
    found = measure(50, 20, tmp_path)
    assert len(found) == 2
    for window in found:
        assert 0 < window[RESIDENT] <= window[MOST]
        assert window[OBJECTS] > 0
        assert window["training: the watch goes on"] > 0
    # A window is told without those before it, of which the first began the record.
    assert found[0]["writer: rest"] > found[1].get("writer: rest", 0.0)
    assert [getattr(owner, name) for _, owner, name in PARTS] == before
    assert not list(tmp_path.iterdir())


def test_windows_are_columns():
    done = CliRunner().invoke(main, ["--steps", "30", "--windows", "3"])
    assert done.exit_code == 0, done.output
    head, _, *rows = done.output.splitlines()
    assert head == "| ms of the processor a step | to 10 | to 20 | to 30 |"
    assert rows[0].startswith("| whole |")
    assert rows[-3].startswith("| MB resident at its end |")
