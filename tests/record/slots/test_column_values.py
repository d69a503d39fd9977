"""A column holds what was given, as DuckDB reads it, or refuses it."""

from __future__ import annotations

import tempfile
from datetime import datetime
from enum import Enum, IntEnum
from itertools import cycle
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.errors import BadInput
from dualform.record.column_values import column_of, fitted
from dualform.record.recorder import Recorder
from dualform.store.tables import running_digest
from tests.cases import some

X = torch.randn(3, 4)


def recorder_of(model, path, **options):
    return Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), path, **options)


REFUSED = {
    "an integer beyond int64": (
        {"sample": np.array([2**63 + 5, 1, 3], np.uint64)},
        "sample must be at most 9223372036854775807, not 9223372036854775813. Record it as text: sample=str(x).",
    ),
    "a lone surrogate": (
        {"word": ["a", "b\ud800", "c"]},
        "word contains text that is not valid Unicode (a lone surrogate). Replace it.",
    ),
    "a dataset with a lone surrogate": (
        {"dataset": "a\udfff"},
        "dataset contains text that is not valid Unicode (a lone surrogate). Replace it.",
    ),
    "a column without a name": ({"": 1}, "'' cannot name a column. Choose a name of Unicode text that is not empty."),
    "a name that is no Unicode": (
        {"\ud800": 1},
        r"'\ud800' cannot name a column. Choose a name of Unicode text that is not empty.",
    ),
    "a mask with masked entries": (
        {"mask": np.ma.MaskedArray([True, True, False], mask=[0, 1, 0])},
        "mask must not contain missing entries. Fill them: mask=mask.filled(False).",
    ),
    "positions with masked entries": (
        {"position": np.ma.MaskedArray([1, 2, 3], mask=[0, 1, 0])},
        "position must not contain missing entries. Leave tokens out with step(mask=…).",
    ),
}


OF_A_STEP = {
    "a built-in column": ({"row": 1}, "Column 'row' is filled by the recorder. Choose another name."),
    "labels that are no integers": (
        {"label": [0.5] * 3},
        "label must be whole numbers, not float64. Record other values under another name, for example "
        "step(my_label=…).",
    ),
    "a dataset that is no text": (
        {"dataset": 3},
        'dataset must be text, not int64. For example step(dataset="mnist").',
    ),
    "objects": ({"thing": [{}] * 3}, "thing cannot hold dict. A column holds integers, floats, booleans or texts."),
    "a ragged column": (
        {"thing": [[1], [1, 2]]},
        "thing must have rows of one length. Pass an array or a tensor, padded if necessary.",
    ),
    "a mask of numbers": (
        {"mask": [1] * 3},
        "mask must be bool, not int64. Pass True for real tokens: mask=mask.bool().",
    ),
}


@pytest.mark.parametrize(
    ("name", "to_a_space"),
    [*zip(REFUSED, cycle([False, True]), strict=False), *((name, False) for name in OF_A_STEP)],
)
def test_what_no_column_holds_is_refused_as_it_is_said(tmp_path, name, to_a_space):
    model, ran, (said, message) = nn.Linear(4, 2), [], (REFUSED | OF_A_STEP)[name]
    recorder = recorder_of(model, tmp_path / "m")
    with (
        recorder,
        pytest.raises(BadInput) as caught,
        recorder.step(**({"at": {"sample": said}} if to_a_space else said)),
    ):
        ran.append(1)
    assert str(caught.value) == message
    assert caught.value.field == next(iter(said))
    assert not ran
    assert recorder.steps == 0


@pytest.mark.parametrize(
    ("spaces", "pair"),
    [
        ({"0": "Target", "1": "target"}, "'Target' and 'target'"),
        ({"0": "Token"}, "'token' and 'Token'"),
    ],
)
def test_spaces_that_differ_only_in_case_are_refused(tmp_path, spaces, pair):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(BadInput) as caught:
        recorder_of(model, tmp_path / "m", spaces=spaces)
    assert str(caught.value) == f"spaces {pair} differ only in case, which SQL ignores. Choose another name."
    assert caught.value.field == "spaces"


class Name(str, Enum):  # noqa: UP042 - this is the case
    """It prints as "Name.MNIST"."""

    MNIST = "mnist"
    SVHN2 = "svhn2"


class Shouted(str):
    __slots__ = ()

    def __str__(self):
        return self.upper()


class Number(IntEnum):
    ONE = 1
    MANY = 2**62


def duckdb_holds(path):
    """By column, what DuckDB itself reads."""
    (tables,) = path.glob("shard-*/slots.duckdb")
    with duckdb.connect(tables, read_only=True) as connection:
        found = connection.execute("SELECT * FROM slots ORDER BY slot")
        names = [column[0] for column in found.description]
        return dict(zip(names, zip(*found.fetchall(), strict=True), strict=True))


def record_columns(path, *steps):
    model = nn.Linear(4, 2)
    with recorder_of(model, path, quiet=True) as recorder:
        for said in steps:
            with recorder.step(**said):
                model(X).sum().backward()
    return duckdb_holds(path)


PANDAS = {"int": "Int64", "uint": "UInt64", "float": "Float64", "bool": "boolean", "str": "string"}

POLARS = {"int": pl.Int64, "uint": pl.UInt64, "float": pl.Float64, "bool": pl.Boolean, "str": pl.String}

ARROW = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}

NUMPY = {"int": np.int64, "uint": np.uint64, "float": np.float64, "bool": np.bool_, "str": object}


def masked(kind, values):
    missing = [value is None for value in values]
    filled = [{"str": ""}.get(kind, 0) if value is None else value for value in values]
    return np.ma.MaskedArray(np.array(filled, NUMPY[kind]), mask=missing)


CONTAINERS = {
    "list": lambda kind, values: list(values),
    "tuple": lambda kind, values: tuple(values),
    "objects": lambda kind, values: np.array([*values, None], object)[:-1],
    "masked": masked,
    "pandas": lambda kind, values: pd.Series(list(values), dtype=PANDAS[kind]),
    "pandas array": lambda kind, values: pd.array(list(values), dtype=PANDAS[kind]),
    "pandas of Arrow": lambda kind, values: pd.Series(list(values), dtype=pd.ArrowDtype(ARROW[kind])),
    "polars": lambda kind, values: pl.Series(list(values), dtype=POLARS[kind]),
    "Arrow": lambda kind, values: pa.array(list(values), ARROW[kind]),
    "chunks of Arrow": lambda kind, values: pa.chunked_array([list(values[:1]), list(values[1:])], ARROW[kind]),
}

WHOLE = {  # of values of which none is missing
    "numpy": lambda kind, values: np.array(values, NUMPY[kind]),
    "torch": lambda kind, values: torch.from_numpy(np.array(values, NUMPY[kind])),
    "a list of tensors": lambda kind, values: [torch.from_numpy(np.array(own, NUMPY[kind])) for own in values],
}

TEXTS = {
    "categories of pandas": lambda kind, values: pd.Series(list(values), dtype="category"),
    "texts of pandas": lambda kind, values: pd.Series(list(values)),
    "categories of polars": lambda kind, values: pl.Series(list(values), dtype=pl.Categorical),
    "dictionary of Arrow": lambda kind, values: pa.array(list(values), pa.string()).dictionary_encode(),
    "views of Arrow": lambda kind, values: pa.array(list(values), pa.string_view()),
}

VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "uint": st.integers(0, 2**64 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
}


def alike(found, expected):
    """Of one kind as well: 1 is not 1.0, and -0.0 is not 0.0."""
    return type(found) is type(expected) and (
        repr(found) == repr(expected) if isinstance(found, float) else found == expected
    )


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_a_column_holds_what_was_given_or_is_refused(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=3, max_size=3))
    makers = dict(CONTAINERS)
    if None not in values:
        makers |= {name: own for name, own in WHOLE.items() if kind != "str" or name == "numpy"}
    if kind == "str":
        makers |= TEXTS
    if any(value != value for value in values):  # pandas itself takes NaN for missing
        makers = {name: own for name, own in makers.items() if "pandas" not in name}
    made = {name: make(kind, values) for name, make in makers.items()}
    if all(value is None for value in values):  # a list of nothing has no type of its own
        made = {name: own for name, own in made.items() if name not in ("list", "tuple", "objects", *TEXTS)}
    if any(value is not None and kind in ("int", "uint") and value >= 2**63 for value in values):
        for given_values in some(made.values()):
            with pytest.raises(BadInput, match=r"c must be at most \d+, not \d+\. Record it as text"):
                column_of("c", given_values)
        return
    with tempfile.TemporaryDirectory() as folder:
        held = record_columns(Path(folder) / "m", {f"of {name}": own for name, own in made.items()})
    for name in some(made):
        assert all(map(alike, held[f"of {name}"], values)), (name, held[f"of {name}"], values)


STORED = [
    ([Name.MNIST, Name.SVHN2, None], ["mnist", "svhn2", None]),
    (np.array([Name.MNIST, Name.SVHN2, None], object), ["mnist", "svhn2", None]),
    (Name.MNIST, ["mnist"] * 3),
    ([Shouted("a"), Shouted("b"), "c"], ["a", "b", "c"]),
    ([Number.ONE, Number.MANY, 3], [1, 2**62, 3]),
    (["a\0", "a", "\0"], ["a\0", "a", "\0"]),
    ([1, None, 2.5], [1.0, None, 2.5]),
    ([True, None, False], [True, None, False]),
    ([1, pd.NA, np.ma.masked], [1, None, None]),
    ([float("nan"), None, 1.0], [float("nan"), None, 1.0]),
    (np.array(["a", "b", "c"], np.dtypes.StringDType()), ["a", "b", "c"]),
    (np.array(["cat", "b", "horse"]), ["cat", "b", "horse"]),
    (np.array("horse"), ["horse"] * 3),
    (np.ma.MaskedArray(np.array(["cat", "b", "horse"]), mask=[0, 1, 0]), ["cat", None, "horse"]),
    (np.array([1.5, -0.0, 2.0], np.longdouble), [1.5, -0.0, 2.0]),
    (torch.tensor([0.1, 2.0, 3.0], dtype=torch.bfloat16), [0.10009765625, 2.0, 3.0]),
    ([np.float32(0.1), np.int8(1), None], [float(np.float32(0.1)), 1.0, None]),
    (pd.Index([1, None, 3], dtype="Int64"), [1, None, 3]),
    (pa.scalar("a"), ["a"] * 3),
    (pd.NA, [None] * 3),
]


def test_values_are_stored_as_they_are(tmp_path):
    said = {f"c{number}": given_values for number, (given_values, _) in enumerate(STORED)}
    of_slots = {f"d{number}": given_values for number, (given_values, _) in enumerate(STORED)}
    found = record_columns(tmp_path / "m", {**said, "at": {"sample": of_slots}})
    for number, (given_values, held) in enumerate(STORED):
        for name in (f"c{number}", f"d{number}"):
            assert all(map(alike, found[name], held)), (name, given_values, found[name])


@pytest.mark.parametrize(
    ("given_values", "said"),
    [
        ([2**63 + 1, 2**63 + 2, 5], "c must be at most 9223372036854775807, not 9223372036854775810"),
        ([-(2**63) - 1, 0, 5], "c must be at least -9223372036854775808, not -9223372036854775809."),
        ([2**53 + 1, 0.5, 1], "c mixes floats with integers too large for a float. Pass values of one type."),
        (["a", 1, None], "c cannot hold int, str. Pass values of one kind, and None for missing ones."),
        ([True, 1, 0], "c cannot hold bool, int."),
        ([1, [2], 3], "c must have rows of one length."),
        ([datetime.now()] * 3, "c cannot hold datetime. A column holds integers"),
        (pd.Series([datetime.now()] * 3), "c cannot hold datetime64"),
        (pa.array([datetime.now()] * 3), "c cannot hold timestamp"),
        (np.array(["2024-01-01"] * 3, "datetime64[D]"), "c cannot hold datetime64[D]"),
        (pl.DataFrame({"a": [1, 2, 3]}), "c must be a column, not a table. Pass one of its columns."),
        (torch.tensor([1j, 2, 3]), "c cannot hold complex64."),
        (torch.eye(3).to_sparse(), "c cannot be read: "),
        ([b"a", b"b", b"c"], "c cannot hold bytes."),
    ],
    ids=lambda own: type(own).__name__ if not isinstance(own, str | list) else str(own)[:30],
)
def test_what_no_column_holds_as_it_is_is_refused(given_values, said):
    with pytest.raises(BadInput) as caught:
        column_of("c", given_values)
    assert str(caught.value).startswith(said)
    assert caught.value.field == "c"


NOTHING = [[None] * 3, pd.array([None] * 3, dtype="Int64"), np.ma.MaskedArray(np.zeros(3), mask=True), pa.nulls(3)]


def test_integers_in_a_column_of_floats_and_nothing_in_any_column(tmp_path):
    numbers, words, of_slots = ({f"{own}{n}": v for n, v in enumerate(NOTHING)} for own in "nsk")
    found = record_columns(
        tmp_path / "m",
        {
            "x": 0.7,
            **dict.fromkeys(numbers, 1),
            **dict.fromkeys(words, "a"),
            "at": {"sample": {"y": [0.5, 1.5, None], **dict.fromkeys(of_slots, (1, 2, 3))}},
        },
        {"x": 0, **numbers, **words, "at": {"sample": {"y": [1, 2, 3], **of_slots}}},
    )
    assert found["x"] == (0.7,) * 3 + (0.0,) * 3
    assert found["y"] == (0.5, 1.5, None, 1.0, 2.0, 3.0)
    for names, before in ((numbers, (1,) * 3), (words, ("a",) * 3), (of_slots, (1, 2, 3))):
        for name in names:
            assert found[name] == before + (None,) * 3, name


@pytest.mark.parametrize(
    ("first", "then", "hint"),
    [
        (0, 0.7, "Pass floats from the first step on: x=float(x)."),
        (0.7, 2**53 + 1, "Give every step the same type."),
        ("a", 1, "Give every step the same type."),
    ],
)
def test_another_type_is_refused_with_what_to_do(tmp_path, first, then, hint):
    with pytest.raises(BadInput, match="Column 'x' changed its type") as caught:
        record_columns(tmp_path / "m", {"x": first}, {"x": then})
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"at": torch.ones(3)}, "at must be {space: {column: values}}, not Tensor."),
        ({"at": {"sample": 3}}, "at must be {space: {column: values}}, not dict."),
        ({"batch_dim": torch.ones(3)}, "batch_dim must be 0 or 1, the axis of the batch, not of type Tensor."),
        ({"batch_dim": 2}, "batch_dim must be 0 or 1, the axis of the batch, not 2."),
        ({"at": {"sample": {"at": 1}}}, "'at' is an argument of step(), and cannot name a column. Rename it."),
        ({"Batch_dim": 1}, "'Batch_dim' is an argument of step(), and cannot name a column. Rename it."),
    ],
)
def test_arguments_of_step_are_no_columns(tmp_path, said, message):
    with pytest.raises(BadInput) as caught:
        record_columns(tmp_path / "m", said)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("label", [[1, None, 3], pd.array([1, None, 3], dtype="Int64"), np.array([1, 2**63, 3], "u8")])
def test_labels_of_a_query_set_are_whole_numbers_all_of_them(tmp_path, label):
    model = nn.Linear(4, 2)
    with recorder_of(model, tmp_path / "m") as recorder:
        with recorder.step():
            model(X).sum().backward()
        with pytest.raises(
            BadInput,
            match=r"label must not contain missing entries|label must be at most 9223372036854775807, "
            r"not 9223372036854775808",
        ):
            recorder.query_set("test", X, label=label)
        recorder.query_set("test", X, label=pl.Series([1, 2, 3]))
    with dualform.open(tmp_path / "m") as memory:
        assert memory.query_set("test").labels.tolist() == [1, 2, 3]


@pytest.mark.parametrize("nothing", [[], np.array([]), torch.zeros(0), pl.Series([]), pa.array([], pa.int64())])
def test_no_rows_have_any_type(nothing):
    for name in ("label", "sample", "position"):
        assert column_of(name, nothing).dtype == np.int64
    for dtype in (np.int64, np.float64, np.bool_, np.object_):
        assert fitted("c", column_of("c", nothing), np.dtype(dtype)).dtype == dtype


def test_values_of_single_tokens_may_be_missing():
    for given_values in ([[1, None], [3, 4]], [np.array([1, None]), (3, 4)], pa.array([[1, None], [3, 4]])):
        found = column_of("c", given_values)
        assert found.tolist() == [[1, None], [3, 4]]
        assert found.dtype == np.int64
    assert column_of("c", [torch.tensor([1, 2]), torch.tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert column_of("c", [["a", None], ["b\0", "b"]]).tolist() == [["a", None], ["b\0", "b"]]


DIGESTS = [
    (pa.array([1, None, 3], pa.int64()), "b302b3068dad1e1b7ec8f2154298a207"),
    (pa.array([1, 2], pa.int32()), "599b02504dfb4d74959bc01b3f923d03"),
    (pa.array([0.5, None]), "e4453d490b6719aae39a1efe55f49ab1"),
    (pa.array([True, None]), "ebf03ca80db3821677d412fbd2106035"),
    (pa.array([], pa.int64()), "94a941c6c3b9aef8d9371d14a0a138b6"),
    (pa.array([[1], [2, 3]], pa.list_(pa.int64())), "46c9ba95d5275b84c6aa3ddc76401f08"),
]

"""As memories have them that were written before other types were added."""


@pytest.mark.parametrize(("column", "digest"), DIGESTS)
def test_digests_are_what_they_were(column, digest):
    assert running_digest("", column) == digest
