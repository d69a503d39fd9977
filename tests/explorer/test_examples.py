"""Which stored queries are those of an example: of its tokens, of places in it, and in any order of layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dualform
from dualform.errors import NotFound
from dualform_explorer.examples import places_of
from dualform_explorer.panels.answer import output_panel
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.panels.layers import places_panel
from dualform_explorer.start import query_set_panel
from dualform_explorer.state import State, read_state
from dualform_explorer.view import Snapshot, View
from tests.cases import some
from tests.explorer.recorded_cnn import HEIGHT, WIDTH, images_of
from tests.explorer.recorded_text import WORDS

TOKENS, EXAMPLES = 5, 12


class HeadFirst(nn.Module):
    """Reads tokens, and has its layers the other way round than it runs them."""

    def __init__(self, outputs: int = 3, pair: bool = False) -> None:
        super().__init__()
        self.head, self.mix, self.words = nn.Linear(6, outputs), nn.Linear(6, 6), nn.Embedding(11, 6)
        self.pair = pair

    def forward(self, words: Tensor) -> Tensor | tuple[Tensor, None]:
        found = self.head(torch.tanh(self.mix(self.words(words))).mean(dim=1))
        return (found, None) if self.pair else found


def record_words(path: Path, model: nn.Module, labels: bool = True) -> Tensor:
    """A few steps; a query set "test" of EXAMPLES examples. Returns its inputs, int64[EXAMPLES, TOKENS]."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    words = torch.randint(11, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(1))
    own = words[:, 0] % 2
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(10):
            with recorder.step(label=own, sample=torch.arange(EXAMPLES)):
                optimizer.zero_grad()
                answer = model(words)
                answer = answer[0] if isinstance(answer, tuple) else answer
                if answer.shape[1] == 1:
                    nn.functional.binary_cross_entropy_with_logits(answer[:, 0], own.float()).backward()
                else:
                    nn.functional.cross_entropy(answer, own).backward()
                optimizer.step()
        recorder.query_set("test", words, label=own if labels else None)
    return words


@pytest.mark.parametrize(
    ("labels", "pair"), [(True, False), (False, True)], ids=["labels", "outputs that are no matrix"]
)
def test_a_layer_is_asked_by_the_query_of_the_pages_example_whatever_the_order_of_layers(tmp_path, labels, pair):
    torch.manual_seed(0)
    model = HeadFirst(pair=pair)
    words = record_words(tmp_path / "run", model, labels)
    model.eval()
    with torch.no_grad():
        mixed = model.words(words)
        headed = torch.tanh(model.mix(mixed)).mean(dim=1)
    with dualform.open(tmp_path / "run") as memory:
        info = memory.info()
        assert [layer.name for layer in info.layers] == ["head", "mix", "words"]
        assert Snapshot(memory, info).examples_of("test").count == EXAMPLES
        for row in (0, 3, EXAMPLES - 1):
            for layer, token, inputs in (("head", None, headed[row]), ("mix", 2, mixed[row, 2])):
                query = View(memory, info, State("", "test", row, layer, ("label",), token)).query()
                assert query == (f"test/{row}" if token is None else f"test/{row}:{token}")
                stored = memory.query_set("test", layer).queries
                at = row if token is None else row * (len(stored) // EXAMPLES) + token
                assert stored[at] == pytest.approx(inputs.numpy(), abs=1e-6)


def test_a_single_output_is_no_reading_of_the_example(tmp_path):
    torch.manual_seed(0)
    record_words(tmp_path / "run", HeadFirst(outputs=1))
    with dualform.open(tmp_path / "run") as memory:
        info = memory.info()
        labels = memory.query_set("test").labels
        row = int(np.flatnonzero(labels == 1)[0])
        state = State("", "test", row, "head", ("label",))
        panel = query_panel(View(memory, info, state))
        assert (panel.label, panel.read, panel.wrong) == (1, None, False)
        assert [own.label for own in output_panel(View(memory, info, state)).outputs] == [False]
        start = query_set_panel(Snapshot(memory, info), "test")
        assert start.misclassified is None
        assert {card.read for card in start.cards} == {None}


def older(info):
    """As of a record that does not say how many examples its query sets have."""
    return replace(info, query_sets=tuple(replace(own, examples=None) for own in info.query_sets))


@pytest.mark.parametrize("query_set", ["held", "unseen", "labelled"])
def test_a_query_set_has_as_many_examples_as_it_was_given_and_not_as_they_have_tokens(texts, query_set):
    info, state = texts.info(), State("", query_set, 3, "3", ("label",))
    assert Snapshot(texts, info).examples_of(query_set).count == 8
    panel = query_panel(View(texts, info, state))
    assert (panel.count, panel.tokens, panel.token, panel.after) == (8, WORDS, WORDS - 1, 4)
    assert View(texts, info, state).query() == f"{query_set}/3:{WORDS - 1}"
    assert query_panel(View(texts, info, replace(state, row=7))).after is None
    assert View(texts, info, state).moved(100).row == 7
    assert read_state([("item", f"{query_set}/7")], info).state is not None
    (fault,) = read_state([("item", f"{query_set}/8")], info).faults
    assert fault.message == f"The query set {query_set} has no example '8': it has 0 to 7."
    assert [name for name, _ in fault.choices] == [f"{query_set}/0", f"{query_set}/7"]
    assert Snapshot(texts, older(info)).examples_of(query_set).count == 8 * WORDS


def test_where_a_record_does_not_say_how_many_each_stored_row_stands_for_itself(texts, memory, info):
    told, state = older(texts.info()), State("", "unseen", 3, "3", ("label",))
    assert View(texts, told, state).query() == "unseen/3"
    (fault,) = read_state([("item", "unseen/64")], told).faults
    assert fault.message == "The query set unseen has no example '64': it has no more than 64."
    with pytest.raises(NotFound, match=r"no example 64"):
        query_panel(View(texts, told, replace(state, row=64)))
    assert Snapshot(memory, older(info)).examples_of("shapes").count == 60, "as outputs and labels say"


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ((7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((6, 8), (2, 3), (1, 2), (0, 2), (2, 1)),
        ((5,), (3,), (1,), (1,), (2,)),
    ],
)
def test_patches_are_those_of_torch(size, kernel, stride, padding, dilation):
    from dualform.answers import Patches

    own = Patches(size, kernel, stride, padding, dilation)
    made = (nn.Conv1d, nn.Conv2d)[len(size) - 1](1, 1, kernel, stride, padding, dilation, bias=False)
    nn.init.ones_(made.weight)
    numbers = torch.arange(1.0, np.prod(size) + 1).reshape(1, 1, *size).requires_grad_()
    out = made(numbers)
    assert own.places == tuple(out.shape[2:])
    for place in range(out.numel()):
        (seen,) = torch.autograd.grad(out.flatten()[place], numbers, retain_graph=True)
        found = np.argwhere(seen[0, 0].numpy() != 0)
        if not len(found):
            continue
        for axis, (start, stop) in enumerate(own.spans(place)):
            # Between what a dilated patch reads there are numbers that it does not read.
            assert start <= found[:, axis].min() < start + dilation[axis]
            assert stop - dilation[axis] < found[:, axis].max() + 1 <= stop


PLACE = State("", "test", 2, "0", ("label",))


@pytest.fixture(scope="module")
def cnn_info(cnn):
    return cnn.info()


@pytest.mark.parametrize(("layer", "grid", "where"), [("0", (4, 5), "label <> 2"), ("2", (3, 4), "")])
def test_each_place_has_the_attention_of_all_slots(cnn, cnn_info, layer, grid, where):
    panel = places_panel(View(cnn, cnn_info, replace(PLACE, layer=layer, where=where)))
    assert (panel.grid, len(panel.sums)) == (grid, grid[0] * grid[1])
    for place in range(len(panel.sums)):
        sums = cnn.group_sum(layer, f"test/2:{place}", by="label", where=where or None)
        assert panel.sums[place] == pytest.approx(sums.sums.sum(), rel=1e-9, abs=1e-9)
    whole = places_panel(View(cnn, cnn_info, replace(PLACE, layer=layer))).sums
    assert panel.token == int(np.argmax(whole))
    assert View(cnn, cnn_info, replace(PLACE, layer=layer)).query() == f"test/2:{panel.token}"
    assert View(cnn, cnn_info, replace(PLACE, layer=layer, token=1)).query() == "test/2:1"
    assert (panel.exact, bool(panel.image)) == (layer == "0", True)


def test_a_layer_without_places_has_no_map(cnn, cnn_info):
    assert places_panel(View(cnn, cnn_info, replace(PLACE, layer="5"))) is None
    assert query_panel(View(cnn, cnn_info, replace(PLACE, layer="5"))).preview.box is None
    found = {layer.name: places_of(cnn_info, "test", layer) for layer in cnn_info.layers}
    assert (found["0"].first, found["2"].first, found["5"]) == (True, False, None)


def test_results_have_the_patch_of_their_own_slot_boxed(cnn, cnn_info):
    panel = slots_panel(View(cnn, cnn_info, PLACE))
    images = images_of(0)[0]
    for own in some(panel.slots):
        box = own.preview.box
        key = cnn._view.snapshot.keys("0").of_entries(np.array([own.slot])).reshape(3, 3)
        patch = images[own.sample, 0, int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)]
        np.testing.assert_array_equal(key[np.ix_(key.any(axis=1), key.any(axis=0))], patch.numpy())
    later = slots_panel(View(cnn, cnn_info, replace(PLACE, layer="2")))
    for own in some(later.slots):
        row, column = divmod(own.position, 4)
        assert not own.preview.box.exact
        assert (own.preview.box.x, own.preview.box.y) == pytest.approx((column * WIDTH / 4, row * HEIGHT / 3))


def test_a_box_of_the_first_layer_is_the_patch_that_it_reads(cnn, cnn_info):
    """The patch has what the stored query has, beside zeros of the padding."""
    image = images_of(2)[0][2, 0].numpy()
    for place in range(20):
        box = query_panel(View(cnn, cnn_info, replace(PLACE, token=place))).preview.box
        assert (box.exact, box.picture) == (True, (WIDTH, HEIGHT))
        query = cnn.query_set("test", "0").queries.reshape(-1, 20, 3, 3)[2, place]
        top, left = int(box.y), int(box.x)
        patch = image[top : top + int(box.height), left : left + int(box.width)]
        np.testing.assert_array_equal(query[np.ix_(query.any(axis=1), query.any(axis=0))], patch)


def test_the_map_is_on_the_page_once_layers_are_unfolded(cnn_pages):
    folded = cnn_pages.get("/explore?item=test/2&layer=0&by=label").text
    assert 'id="places"' not in folded
    assert 'class="over"' in folded
    page = cnn_pages.get("/explore?item=test/2&layer=0&by=label&open=data,layers").text
    assert 'class="failure"' not in page
    panel = page[page.index('id="panel-places"') :]
    panel = panel[: panel.index("</section>")]
    assert len(re.findall(r'<rect [^>]*class="heat ', panel)) == 20
    assert sorted(map(int, re.findall(r"token=(\d+)&", panel))) == [*range(20)]
    assert "the box is the patch that the layer reads" in panel
    assert 'aria-label="Places"' in page
    assert "place →" in page
    later = cnn_pages.get("/explore?item=test/2&layer=2&by=label&open=layers").text
    assert "A box is a cell of the grid" in later
