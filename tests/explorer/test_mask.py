"""Masks of chips: the slots that they leave, against what NumPy makes of the columns."""

from __future__ import annotations

import numpy as np
import pytest

from dualform.errors import BadMask
from dualform_explorer.filter import Chip, Range, column_name, complete_columns, literal, read_chip, where_of

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


def test_names_and_texts_are_quoted():
    assert column_name("label") == "label"
    assert column_name('order "x"') == '"order ""x"""'
    assert literal("it's") == "'it''s'"


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
