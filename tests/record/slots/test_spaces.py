"""Slot spaces: by default from the keys, by name, those of routed layers, and those that are suggested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from dualform.errors import BadInput, RecordingError
from dualform.patterns import matches
from dualform.record.slots.alignment import suggested_spaces
from tests.record.listed import opened_on


class Translator(nn.Module):
    """An encoder and a decoder of other lengths, and a head on rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.decoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, source, target):
        return self.head(self.encoder(source).mean(1) + self.decoder(target).mean(1))


SOURCE, TARGET = torch.randn(2, 5, 3), torch.randn(2, 4, 3)


def test_an_encoder_and_a_decoder_have_spaces_of_their_own(tmp_path):
    model = Translator()
    opened = opened_on(model, tmp_path / "m", spaces={"decoder.*": "target", "encoder.*": "source"})
    words, mask = np.arange(8).reshape(2, 4), np.array([[True] * 4, [True, True, False, False]])
    said = {"source": {"word": np.arange(10).reshape(2, 5)}}
    with opened.recorder, opened.recorder.step(label=[7, 8], at=said) as step:
        loss = model(SOURCE, TARGET).square().sum()
        step.at("target", word=words, position=words + 10, mask=mask, label=words + 20)
        loss.backward()
    sink = opened.sink
    assert {layer.name: layer.space for layer in sink.layers} == {
        "encoder.0": "source", "encoder.2": "source", "decoder.0": "target", "decoder.2": "target", "head": "sample",
    }  # fmt: skip
    assert [extent.space for extent in sink.batches[0].extents] == ["sample", "source", "target"]
    assert sink.column("word", "source") == [*range(10)]
    assert sink.column("label", "source") == [7] * 5 + [8] * 5
    assert sink.column("position", "source") == [*range(5)] * 2
    assert sink.column("word", "target") == [0, 1, 2, 3, 4, 5]
    assert sink.column("label", "target") == [20, 21, 22, 23, 24, 25]
    assert sink.column("position", "target") == [10, 11, 12, 13, 14, 15]
    assert sink.column("row", "target") == [0, 0, 0, 0, 1, 1]
    assert sink.column("label") == [7, 8]
    assert (sink.keys("decoder.0") == TARGET[torch.from_numpy(mask)].numpy()).all()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"word": np.zeros((2, 5), int)},
            "word has a value for each token, but several spaces have tokens: 'target' and 'token'. Choose one: "
            "step(at={'target': {'word': …}}).",
        ),
        ({"at": {"tokens": {"word": 1}}}, "There is no space 'tokens'. Spaces: 'sample', 'target', 'token'."),
    ],
    ids=["single tokens", "no space"],
)
def test_what_is_of_no_single_space_is_refused(tmp_path, said, message):
    model = Translator()
    opened = opened_on(model, tmp_path / "m", spaces={"decoder.*": "target"})
    with opened.recorder, pytest.raises(BadInput) as caught, opened.recorder.step(**said):
        model(SOURCE, TARGET).sum().backward()
    assert str(caught.value) == message


def test_after_the_update_nothing_more_is_said(tmp_path):
    model = nn.Linear(3, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, opened.recorder.step() as step:
        model(SOURCE).sum().backward()
        opened.optimizer.step()
        with pytest.raises(RecordingError, match=r"^step\.at was called after the update of step 0\."):
            step.at("token", word=1)


NAMES = {
    "a dash": ({"*": "to-ken"}, "'to-ken' cannot name a space. Use letters, digits and underscores"),
    "a table": ({"*": "Steps"}, "'Steps' cannot name a space: it is the name of a table."),
    "a space's table": ({"*": "extents_a"}, "'extents_a' cannot name a space: it is the name of a table."),
}


@pytest.mark.parametrize(("spaces", "message"), NAMES.values(), ids=NAMES)
def test_names_that_no_space_can_have(tmp_path, spaces, message):
    with pytest.raises(BadInput) as caught:
        opened_on(nn.Linear(3, 3), tmp_path / "m", spaces=spaces)
    assert str(caught.value).startswith(message)
    assert caught.value.field == "spaces"


class FlatHead(nn.Module):
    """A head on the tokens of a batch as one long list."""

    def __init__(self, time_first=False):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.time_first = nn.LSTM(3, 4, batch_first=not time_first), nn.Linear(4, 2), time_first

    def forward(self, x):
        return self.head(self.body(x)[0].reshape(-1, 4))


def test_a_flattened_head_is_refused_and_by_name_its_rows_are_tokens(tmp_path):
    for time_first in (False, True):
        model, x = FlatHead(time_first), SOURCE.transpose(0, 1) if time_first else SOURCE
        refused = opened_on(model, tmp_path / "refused")
        with refused.recorder, pytest.raises(RecordingError) as caught, refused.recorder.step():
            model(x).sum().backward()
        assert str(caught.value) == (
            "layer 'head' saw 10 rows at step 0, but layer 'body' saw 2. If its rows are the tokens of a batch, "
            "put it into their space with spaces=. If the model chooses them, use Recorder(routed=…) and step(at=…)."
        )
        opened = opened_on(model, tmp_path / "m", spaces={"head": "token"})
        said = {"batch_dim": 1} if time_first else {}
        with opened.recorder, opened.recorder.step(word=np.arange(10).reshape(2, 5), **said):
            model(x).square().sum().backward()
        expected = model.body(x)[0].detach()  # without gradients, torch may run an LSTM by another kernel
        expected = expected.transpose(0, 1) if time_first else expected
        sink = opened.sink
        assert {layer.space for layer in sink.layers} == {"token"}
        np.testing.assert_array_equal(sink.keys("head"), expected.reshape(10, 4).numpy())
        assert sink.column("row", "token") == [0] * 5 + [1] * 5
        assert sink.column("word", "token") == [*range(10)]


def test_a_row_that_the_step_has_not(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    opened = opened_on(model, tmp_path / "m", routed=["1"])
    with opened.recorder, pytest.raises(BadInput) as caught, opened.recorder.step(at={"layer_1": {"row": [0, 2]}}):
        model(SOURCE[:, 0]).square().sum().backward()
    assert str(caught.value) == (
        "row of space 'layer_1' must be 0 to 1, the rows of the step, not 0 to 2. Rows count "
        "from 0; pass -1 for an unknown row."
    )


@pytest.mark.parametrize("length", [None, 3])
def test_a_mask_of_rows_leaves_whole_rows_out(tmp_path, length):
    model, x = nn.Linear(3, 3), torch.randn(4, 3) if length is None else torch.randn(4, 3, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, opened.recorder.step(label=[5, 6, 7, 8], mask=[True, False, True, False]):
        model(x).square().sum().backward()
    space = "sample" if length is None else "token"
    assert opened.sink.column("label", space) == [5] * (length or 1) + [7] * (length or 1)
    np.testing.assert_array_equal(opened.sink.keys(""), x[[0, 2]].reshape(-1, 3).numpy())


def test_rows_of_a_space_that_has_the_batch_are_not_said(tmp_path):
    model = nn.Linear(3, 3)
    opened = opened_on(model, tmp_path / "m")
    message = (
        r"^row cannot be passed for space 'token', whose rows are the batch's\. Pass it only "
        r"for layers named in Recorder\(routed=…\)\.$"
    )
    said = {"token": {"row": np.zeros((2, 5), int)}}
    with opened.recorder, pytest.raises(BadInput, match=message), opened.recorder.step(at=said):
        model(SOURCE).sum().backward()


def test_images_of_tokens_are_flattened_into_positions(tmp_path):
    model = nn.Linear(3, 3)
    opened = opened_on(model, tmp_path / "m")
    x, place = torch.randn(2, 3, 4, 3), np.arange(24).reshape(2, 3, 4)
    with opened.recorder, opened.recorder.step(place=place, label=[1, 2]):
        model(x).sum().backward()
    sink = opened.sink
    assert sink.column("position", "token") == [*range(12)] * 2
    assert sink.column("place", "token") == [*range(24)]
    assert sink.column("label", "token") == [1] * 12 + [2] * 12


def test_a_column_keeps_its_level(tmp_path):
    model = nn.Linear(3, 3)
    opened = opened_on(model, tmp_path / "m")

    def step(**said):
        with opened.recorder.step(**said):
            model(SOURCE).sum().backward()

    tokens = np.zeros((2, 5), int)
    with opened.recorder:
        step(word=tokens, label=[1, 2])
        step(word=3, label=4)
        with pytest.raises(
            BadInput, match=r"^Column 'word' had one value for each token at first, but now has one for each row\."
        ):
            step(word=[1, 2])
        with pytest.raises(
            BadInput, match=r"^Column 'label' had one value for each row at first, but now has one for each token\."
        ):
            step(label=tokens)
        with pytest.raises(
            BadInput,
            match=r"^Column 'word' changed its type from int64 to float64\. Pass floats from the first step on",
        ):
            step(word=tokens * 0.5)
        step(later=tokens)  # what is said of single tokens may come later
    sink = opened.sink
    assert sink.column("word", "token") == [0] * 10 + [3] * 10 + [None] * 10
    assert sink.column("label", "token") == [1] * 5 + [2] * 5 + [4] * 10 + [None] * 10


BLOCK = ("layer.0.SelfAttention.q", "layer.0.SelfAttention.o", "layer.1.EncDecAttention.q", "layer.2.wi", "layer.2.wo")

PARTS = st.lists(st.sampled_from(["0", "1", "block", "q"]), min_size=1, max_size=4).map(".".join)


def test_the_decoder_of_a_translator_whose_keys_come_from_the_encoder():
    shapes = {"encoder.embed": (8, 24)} | {f"encoder.block.{n}.layer.0.q": (8, 24) for n in range(3)}
    for n in range(3):
        shapes |= {f"decoder.block.{n}.{name}": (8, 12) for name in BLOCK}
        shapes |= {f"decoder.block.{n}.layer.1.EncDecAttention.{name}": (8, 24) for name in "kv"}
    shapes["lm_head"] = (8, 12)
    assert suggested_spaces(shapes, "token") == {
        "decoder.block.*.layer.0.*": "token_2",
        "decoder.block.*.layer.*.EncDecAttention.q": "token_2",
        "decoder.block.*.layer.2.*": "token_2",
        "lm_head": "token_2",
    }


@given(st.dictionaries(PARTS, st.integers(0, 2), min_size=1))
def test_a_pattern_fits_layers_of_its_shape_alone(shapes):
    found = suggested_spaces(shapes, "token")
    spaces = {
        name: {space for pattern, space in found.items() if matches(name, pattern)} or {"token"} for name in shapes
    }
    assert all(len(own) == 1 for own in spaces.values())
    assert len({(shape, *spaces[name]) for name, shape in shapes.items()}) == len(set(shapes.values()))
    assert spaces[next(iter(shapes))] == {"token"}
