"""The places of a convolution: all of them at once, and the one that is asked about in its picture."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform_explorer.examples import query_of
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.panels.layers import places_panel
from dualform_explorer.places import places_of
from dualform_explorer.state import State
from tests.cases import some
from tests.explorer.recorded_cnn import HEIGHT, WIDTH, images_of, record
from tests.explorer.served import served

STATE = State("", "test", 2, "0", ("label",))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return record(tmp_path_factory.mktemp("cnn") / "run")


@pytest.fixture(scope="module")
def cnn(path):
    with dualform.open(path) as memory:
        yield memory


@pytest.fixture(scope="module")
def info(cnn):
    return cnn.info()


@pytest.mark.parametrize("where", ["", "label <> 2"])
@pytest.mark.parametrize(("layer", "grid"), [("0", (4, 5)), ("2", (3, 4))])
def test_each_place_has_the_attention_of_all_slots(cnn, info, layer, grid, where):
    panel = places_panel(cnn, info, replace(STATE, layer=layer, where=where))
    assert (panel.grid, len(panel.sums)) == (grid, grid[0] * grid[1])
    for place in range(len(panel.sums)):
        sums = cnn.group_sum(layer, f"test/2:{place}", by="label", where=where or None)
        assert panel.sums[place] == pytest.approx(sums.sums.sum(), rel=1e-9, abs=1e-9)
    whole = places_panel(cnn, info, replace(STATE, layer=layer)).sums
    assert panel.token == int(np.argmax(whole))
    assert query_of(cnn, info, replace(STATE, layer=layer)) == f"test/2:{panel.token}"
    assert query_of(cnn, info, replace(STATE, layer=layer, token=1)) == "test/2:1"
    assert (panel.exact, bool(panel.image)) == (layer == "0", True)


def test_a_layer_without_places_has_no_map(cnn, info):
    assert places_panel(cnn, info, replace(STATE, layer="5")).sums == ()
    assert query_panel(cnn, info, replace(STATE, layer="5")).preview.box is None


@pytest.mark.parametrize("place", range(20))
def test_a_box_of_the_first_layer_is_the_patch_that_it_reads(cnn, info, place):
    """The patch has what the stored query has, beside zeros of the padding."""
    box = query_panel(cnn, info, replace(STATE, token=place)).preview.box
    assert (box.exact, box.picture) == (True, (WIDTH, HEIGHT))
    query = cnn.query_set("test", "0").queries.reshape(-1, 20, 3, 3)[2, place]
    image = images_of(2)[0][2, 0].numpy()
    top, left = int(box.y), int(box.x)
    patch = image[top : top + int(box.height), left : left + int(box.width)]
    there = query[np.ix_(query.any(axis=1), query.any(axis=0))]
    np.testing.assert_array_equal(there, patch)


def test_results_have_the_patch_of_their_own_slot_boxed(cnn, info):
    panel = slots_panel(cnn, info, STATE)
    images = images_of(0)[0]
    for own in some(panel.slots):
        box = own.preview.box
        key = cnn._view.snapshot.keys("0").of_entries(np.array([own.slot])).reshape(3, 3)
        patch = images[own.sample, 0, int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)]
        np.testing.assert_array_equal(key[np.ix_(key.any(axis=1), key.any(axis=0))], patch.numpy())
    later = slots_panel(cnn, info, replace(STATE, layer="2"))
    for own in some(later.slots):
        row, column = divmod(own.position, 4)
        assert not own.preview.box.exact
        assert (own.preview.box.x, own.preview.box.y) == pytest.approx((column * WIDTH / 4, row * HEIGHT / 3))


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


def test_the_map_is_on_the_page_once_layers_are_unfolded(path):
    with served({"run": lambda: dualform.open(path)}) as pages:
        folded = pages.get("/explore?item=test/2&layer=0&by=label").text
        assert 'id="places"' not in folded
        assert 'class="over"' in folded
        page = pages.get("/explore?item=test/2&layer=0&by=label&open=data,layers").text
        assert 'class="failure"' not in page
        panel = page[page.index('id="panel-places"') :]
        panel = panel[: panel.index("</section>")]
        assert len(re.findall(r'<rect [^>]*class="heat ', panel)) == 20
        assert sorted(map(int, re.findall(r"token=(\d+)&", panel))) == [*range(20)]
        assert "the box is the patch that the layer reads" in panel
        assert 'aria-label="Places"' in page
        assert "place →" in page
        later = pages.get("/explore?item=test/2&layer=2&by=label&open=layers").text
        assert "A box is a cell of the grid" in later


def test_layers_know_their_patches(cnn, info):
    found = {layer.name: places_of(info, "test", layer) for layer in info.layers}
    assert (found["0"].first, found["2"].first, found["5"]) == (True, False, None)
