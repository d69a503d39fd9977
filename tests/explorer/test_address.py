"""The state of a page as its address, and the filter of its chips, against what NumPy makes of the columns."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, unquote

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadMask
from dualform_explorer.filter import Chip, Condition, Range, complete_columns, literal, read_chip, where_of
from dualform_explorer.state import State, read_state
from dualform_explorer.view import Snapshot, View

START = State("", "shapes", 3, "4", ("dataset", "label"))


def read(query: str, info, memory: str = ""):
    return read_state(parse_qsl(query, keep_blank_values=True), info, memory)


def faults(query: str, info) -> dict[str, str]:
    return {fault.parameter: fault.message for fault in read(query, info).faults}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"score": "abs", "by": ("label",), "k": 120, "by_sample": True, "among": "misclassified"},
        {"score": "contribution", "target": "3-0", "at": 30, "inexact": True, "verify": True},
        {"chips": (Chip.of(False, ("dataset",), ("noise <b>",)), Chip.of(True, ("step",), (Range(10, 19),)))},
        {"chips": (Chip.of(False, ("dataset", "label"), ("shapes", 3)), Chip.of(True, ("label",), (None,)))},
        {"chips": (Chip.of(True, ("bright",), (Range(-0.5, 1e-3),)), Chip.of(False, ("bright",), (0.25,)))},
        {"where": "label = 3 -- all of it\n OR step > 100 & 'ü;:,'", "initial": False},
        {"layer": "0", "token": 0},
        {"kept": "a.name-1"},
    ],
)
def test_what_was_written_is_read(info, changes):
    state = replace(START, **changes)
    assert read(state.query(), info).state == state


@settings(max_examples=20, deadline=None)
@given(st.text(min_size=1))
def test_any_text_that_a_column_may_hold_is_written_and_read(text):
    chip = Chip(False, (Condition("dataset", text), Condition("label", 3)))
    assert read_chip(chip.written, False, {"dataset": "VARCHAR", "label": "BIGINT"}) == chip


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True))
def test_any_columns_are_grouped_by_that_the_address_names(info, names):
    columns = {**info.columns["sample"], **dict.fromkeys([*names, *filter(None, ",".join(names).split(","))], "BIGINT")}
    own = replace(info, columns={"sample": columns})
    state = replace(START, by=tuple(names))
    assert read(state.query(), own).state == state
    for fault in read("by=colour", own).faults:
        for name, query in fault.choices:
            assert read(query, own).state.by == tuple(map(unquote, [name]))


def test_a_model_that_is_a_layer_itself_is_named_beside_the_layers_in_it(info):
    own = replace(info, layers=(replace(info.layers[0], name=""), info.layers[2]))
    own = replace(own, query_sets=(replace(info.query_sets[0], layers=("", "4")),))
    for layer in ("", "4"):
        state = replace(START, layer=layer)
        assert read(state.query(), own).state == state
    assert read("", own).state.layer == "4"


@pytest.mark.parametrize(
    ("query", "parameter", "says"),
    [
        ("layr=4", "layr", "The page knows no parameter 'layr'."),
        ("layer=9", "layer", "There is no layer '9'."),
        ("layer=4&layer=2", "layer", "The parameter layer is given 2 times."),
        ("item=none/3", "item", "There is no query set 'none'; an item is SET/EXAMPLE."),
        ("item=shapes/60", "item", "The query set shapes has no example '60': it has 0 to 59."),
        ("item=shapes/-1", "item", "The query set shapes has no example '-1': it has 0 to 59."),
        ("by=colour", "by", "There is no column 'colour' to group by."),
        ("by=label,label", "by", "by is 'label,label'; it names up to 3 columns, each once."),
        ("score=loud", "score", "score is 'loud', which is none of: dot, abs, contribution."),
        ("target=4", "target", "target is '4'; it is an output of layer 4, 0 to 3, or a margin of two, as 0-1."),
        ("target=1-1", "target", "target is '1-1';"),
        ("&".join(f"without=step:{step}" for step in range(101)), "without", "without and only are given 101 times"),
        ("target=%D9%A3", "target", "target is '\u0663';"),
        ("layer=", "layer", "There is no layer ''."),
        ("at=61", "at", "at is '61'; it is a whole number, 0 to 60."),
        ("at=-1", "at", "at is '-1'; it is a whole number, 0 to 60."),
        ("k=13", "k", "k is '13', which is none of: 12, 24, 60, 120, 500."),
        ("w0=no", "w0", "w0 is 'no', which is none of: on, off."),
        ("without=colour:3", "without", "There is no column 'colour'."),
        ("without=label:x", "without", "'x' is no number, and the column label has numbers."),
        ("only=step:9..3", "only", "9..3 of the column step ends before it begins."),
        ("where=" + "x" * 4001, "where", "The parameter where is longer than 4000 letters."),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_guessed(info, query, parameter, says):
    assert read(query, info).state is None
    assert faults(query, info)[parameter].startswith(says)


def test_what_may_stand_in_the_place_of_a_fault_keeps_the_rest(info):
    (fault,) = read("layer=9&score=abs", info).faults
    assert dict(fault.choices) == {name: f"score=abs&layer={name}" for name in ("0", "2", "4")}


@pytest.mark.parametrize(
    ("query", "chip"),
    [
        ("column=step&first=3&last=9&keep=only", Chip.of(True, ("step",), (Range(3, 9),))),
        ("column=label&value=2&keep=without", Chip.of(False, ("label",), (2,))),
        ("column=label&value=", Chip.of(False, ("label",), (None,))),
    ],
)
def test_a_form_adds_a_chip_and_asks_for_the_states_own_address(info, query, chip):
    found = read(f"item=shapes/3&{query}", info)
    assert found.forms
    assert found.state == replace(START, chips=(chip,))


def test_a_chip_takes_the_place_of_its_opposite_and_goes_when_it_is_given_again():
    once = START.with_chip(False, ("label",), (3,))
    assert [chip.written for chip in once.chips] == ["label:3"]
    assert [chip.only for chip in once.with_chip(True, ("label",), (3,)).chips] == [True]
    assert once.with_chip(False, ("label",), (3,)) == START


def test_the_reader_moves_on_among_the_examples_that_are_gone_through(memory, info):
    misclassified = Snapshot(memory, info).examples_of("shapes").misclassified.tolist()
    assert len(misclassified) > 3
    state = replace(START, row=misclassified[1], among="misclassified")
    rows = [View(memory, info, state).moved(by).row for by in (0, 1, 2, -1, -5, 10**5)]
    assert rows == [
        misclassified[1],
        misclassified[2],
        misclassified[3],
        misclassified[0],
        misclassified[0],
        misclassified[-1],
    ]
    between = next(row for row in range(misclassified[0], 60) if row not in misclassified)
    place = sum(row < between for row in misclassified)
    beside = replace(state, row=between)
    assert View(memory, info, beside).moved(1).row == misclassified[place]
    assert View(memory, info, beside).moved(-1).row == misclassified[place - 1]
    assert read("item=shapes/3&move=2", info).move == 2
    assert "move is 'x'" in faults("move=x", info)["move"]


def test_what_an_address_does_not_say_is_chosen(info):
    assert read("", info).state == replace(START, row=0), "the first example in the last layer"
    assert read(f"at={info.steps}", info).state == replace(START, row=0), "the end of the training is not written"
    assert read("", info, "runs/a").state.query().startswith("memory=runs/a&")


def test_another_layer_has_a_target_of_its_own(info, pages):
    state = replace(START, score="contribution", target="3-0")
    assert read(state.query(layer="0"), info).state.target == ""
    assert read(state.query(layer="4", row=5), info).state.target == "3-0"
    assert read(state.query(layer="0", target="7"), info).state.target == "7"
    hidden = pages.get("/explore?item=shapes/3&layer=0&score=contribution&target=7&by=label&open=data").text
    assert "to unit 7" in hidden
    assert "to output" not in hidden
    assert "to output 3 less 0" in pages.get(f"/explore?{state.query(open=('data',))}").text


LEFT_OUT, ALONE = False, True


def is_(column, value):
    return lambda own: np.array([each == value for each in own[column]])


def between(column, first, last):
    return lambda own: (own[column] >= first) & (own[column] <= last)


CASES = [
    ([Chip.of(LEFT_OUT, ("dataset",), ("noise <b>",))], lambda own: ~is_("dataset", "noise <b>")(own)),
    ([Chip.of(ALONE, ("label",), (3,))], is_("label", 3)),
    (
        [Chip.of(ALONE, ("label",), (3,)), Chip.of(ALONE, ("label",), (1,)), Chip.of(ALONE, ("dataset",), ("shapes",))],
        lambda own: (is_("label", 3)(own) | is_("label", 1)(own)) & is_("dataset", "shapes")(own),
    ),
    (
        [Chip.of(LEFT_OUT, ("dataset", "label"), ("shapes", 3)), Chip.of(LEFT_OUT, ("label",), (0,))],
        lambda own: ~(is_("dataset", "shapes")(own) & is_("label", 3)(own)) & ~is_("label", 0)(own),
    ),
    ([Chip.of(ALONE, ("step",), (Range(10, 19),))], between("step", 10, 19)),
    ([Chip.of(LEFT_OUT, ("step",), (Range(10, 19),))], lambda own: ~between("step", 10, 19)(own)),
    ([Chip.of(LEFT_OUT, ("bright",), (Range(-0.1, 0.1),))], lambda own: ~between("bright", -0.1, 0.1)(own)),
]


@pytest.mark.parametrize(("chips", "stays"), CASES)
@pytest.mark.parametrize("complete", [True, False])
def test_a_mask_of_chips_leaves_the_slots_that_it_says(memory, info, chips, stays, complete):
    columns = memory.slots(np.arange(info.slots["sample"]))
    where = where_of(chips, complete=complete_columns(info) if complete else ())
    left = memory.group_sum("4", "shapes/0", by="slot", where=where)
    assert [slot for (slot,) in left.groups] == np.flatnonzero(stays(columns)).tolist()


def test_slots_without_a_value_stay_when_one_is_left_out_and_go_when_one_stays_alone(memory):
    rows = memory.sql("SELECT NULL::INT AS label UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 7").records()
    assert {row["label"] for row in rows} == {None, 3, 4, 7}

    def left(chip):
        table = "(SELECT NULL::INT AS label UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 7)"
        return {row["label"] for row in memory.sql(f"SELECT label FROM {table} WHERE {where_of([chip])}")}

    assert left(Chip.of(LEFT_OUT, ("label",), (3,))) == {None, 4, 7}
    assert left(Chip.of(LEFT_OUT, ("label",), (Range(3, 4),))) == {None, 7}
    assert left(Chip.of(LEFT_OUT, ("label",), (None,))) == {3, 4, 7}
    assert left(Chip.of(ALONE, ("label",), (Range(3, 4),))) == {3, 4}
    assert left(Chip.of(ALONE, ("label",), (None,))) == {None}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0.5"])
def test_fractions_that_are_no_numbers_are_left_out_as_any_value(memory, value):
    chip = read_chip(f"bright:{value}", LEFT_OUT, {"bright": "DOUBLE"})
    assert chip == Chip.of(LEFT_OUT, ("bright",), (float(value),))
    assert read_chip(chip.written, LEFT_OUT, {"bright": "DOUBLE"}) == chip
    every = ("nan", "inf", "-inf", "0.5")
    table = f"(SELECT unnest([{', '.join(literal(float(own)) for own in every)}]) AS bright)"
    for only in (LEFT_OUT, ALONE):
        where = where_of([Chip.of(only, ("bright",), (float(value),))])
        rows = memory.sql(f"SELECT bright FROM {table} WHERE {where}").records()
        assert {str(row["bright"]) for row in rows} == ({value} if only else set(every) - {value})
    assert memory.group_sum("4", "shapes/0", by="label", where=where_of([chip])).counts.sum() == 720


def test_a_condition_of_ones_own_stands_beside_the_chips(memory):
    chips, own = [Chip.of(LEFT_OUT, ("label",), (0,))], "label = 1 OR label = 2 -- or so"
    where = where_of(chips, own, before=30)
    groups = memory.group_sum("4", "shapes/0", by=("label", "step"), where=where).groups
    assert {label for label, _ in groups} == {1, 2}
    assert max(step for _, step in groups) == 29
    assert where_of([], own) == own
    assert where_of([]) is None


def test_a_dataset_that_every_slot_has_is_compared_as_people_write_it(info):
    chip = Chip.of(LEFT_OUT, ("dataset",), ("shapes",))
    assert where_of([chip], complete=complete_columns(info)) == "dataset <> 'shapes'"
    assert where_of([chip]) == "dataset IS DISTINCT FROM 'shapes'"


@pytest.mark.parametrize(
    "own",
    [
        "label = 1) OR (true",
        "label = 1) OR (true --)",
        "label = 1) /* ( */ OR (true",
        "dataset = ')(' ) OR (dataset = '('",
        "dataset = 'it''s (') OR (true",
        "dataset = E'\\') (' ) OR (true",
        "(label = 1",
        "label = 1)",
        "label = 1 -- \r ) OR (true -- \r",
        "label = 1 /* /* */ ( */ ) OR (true /* /* */ ) */",
        "'' = name'\\') OR (true OR '' = name''",
        "label$$ = 1) OR (true $$",
        "'' =\u00a0e'\\'' ) OR (true OR '' = ''",
        "'' =\u2003$$'$$ ) OR (true OR '' =\u3000$$'$$",
        "'' = $\u202e$ ( $\u202e$ ) OR (true OR '' = $\u202e$ ) $\u202e$",
    ],
)
def test_a_condition_of_ones_own_does_not_reach_beyond_the_chips(own):
    with pytest.raises(BadMask, match="parenthesis"):
        where_of([Chip.of(LEFT_OUT, ("label",), (3,))], own)
    with pytest.raises(BadMask, match="parenthesis"):
        where_of([], own, before=3)


def test_a_comment_that_does_not_end_is_refused():
    with pytest.raises(BadMask, match="a comment that it does not end"):
        where_of([Chip.of(LEFT_OUT, ("label",), (3,))], "label = 1 /* /* */")


@pytest.mark.parametrize(
    "own",
    [
        "label = 1 OR label = 3",
        "label <> 1 -- (a comment)",
        "(label = 1) OR (label <> 1) /* :-( */",
        "label <> 1 AND ':-)' <> 'it''s :-('",
        "label IN (1, 3) AND (step < 5 OR (step >= 5))",
        "label = 1 /* :-( /* :-) */ ) */ -- (\r OR label = 3",
        "label */* ) */ 1 = 1",
        "label = 1 OR '' = $a$ ) $a$ OR '' = E'\\') '",
        "label = 1 OR '' =\u2060$$ ) $$ OR '' =\u00a0E'\\') '",
    ],
)
def test_a_condition_of_ones_own_holds_beside_the_chips(memory, info, own):
    columns = memory.slots(np.arange(info.slots["sample"]))
    alone = {slot for (slot,) in memory.group_sum("4", "shapes/0", by="slot", where=own).groups}
    where = where_of([Chip.of(LEFT_OUT, ("label",), (3,))], own, complete=complete_columns(info))
    left = [slot for (slot,) in memory.group_sum("4", "shapes/0", by="slot", where=where).groups]
    assert left == [slot for slot in range(info.slots["sample"]) if slot in alone and columns["label"][slot] != 3]
