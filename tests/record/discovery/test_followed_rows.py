"""Rows that a network reorders, selects or flattens before a layer, held against gradients of single samples.

A column of numbers goes with the tokens through every form, so that each slot's sample is told by what reached it.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import dualform
from dualform.record.discovery.followed_rows import FollowedRows
from tests.cases import some
from tests.record.listed import opened_on
from tests.trainings import learn

B, L, D = 6, 4, 5
LENGTHS = torch.tensor([2, 4, 1, 4, 3, 2])


def mask(x):
    """As many tokens as there are rows."""
    found = torch.zeros(x.shape[:2], dtype=torch.bool)
    found.view(-1)[[1, 3, 6, 8, 20, 23]] = True
    return found


def order(x):
    return x[:, 0, 0].argsort()


def packed(x, **given):
    return pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False, **given)


def written(x):
    flat = x.reshape(-1, x.shape[-1]).clone()
    flat[torch.randperm(len(flat), generator=torch.Generator().manual_seed(2))] = flat.clone()
    return flat


def into(target, place, value):
    target[place] = value
    return target


def experts(x):
    """Tokens of two experts that come back to their places; some of them go to both."""
    flat = x.reshape(-1, x.shape[-1])
    total, count = torch.zeros_like(flat), flat.new_zeros(len(flat))
    for chosen in (flat[:, 0] > -0.2, flat[:, 0] < 0.2):
        total.index_add_(0, chosen.nonzero()[:, 0], flat[chosen])
        count.index_add_(0, chosen.nonzero()[:, 0], flat.new_ones(len(flat))[chosen])
    return total / count[:, None]


def experts_by_index(x):
    flat = x.reshape(-1, x.shape[-1])
    total = torch.zeros_like(flat)
    for chosen in (flat[:, 0] > 0, flat[:, 0] <= 0):
        total[chosen] += flat[chosen]
    return total


SELECTED = {
    "masked": lambda x: x[mask(x)],
    "masked_select": lambda x: x.masked_select(mask(x).unsqueeze(-1)).view(-1, x.shape[-1]),
    "flat mask": lambda x: x.flatten(0, 1)[mask(x).flatten()],
    "one token a row": lambda x: x[torch.arange(len(x)), LENGTHS - 1],
    "half twice": lambda x: x[:3, 0].repeat(2, 1),
    "each twice": lambda x: x[:3, 2].repeat_interleave(2, 0),
    "by counts": lambda x: x[:, 1].repeat_interleave(torch.tensor([2, 0, 1, 0, 3, 0]), 0),
    "largest": lambda x: x[x[:, 0, 0].topk(3).indices].flatten(0, 1)[:6],
    "packed": lambda x: packed(x).data,
    "two, stacked": lambda x: torch.stack([x[order(x)][:3, 0], x[:3, 1]]).flatten(0, 1),
    "first column of a square": lambda x: x.transpose(0, 1)[0].flip(0),
}
TOKENS = {
    "time first": lambda x: x.transpose(0, 1).reshape(-1, x.shape[-1]),
    "permuted": lambda x: x.permute(1, 0, 2).flatten(0, 1),
    "unbound": lambda x: torch.cat(x.unbind(1)),
    "stacked": lambda x: torch.stack([x[:, t] for t in range(L)]).flatten(0, 1),
    "einsum": lambda x: torch.einsum("bld->lbd", x).reshape(-1, x.shape[-1]),
    "chosen": lambda x: x.flatten(0, 1)[torch.randperm(B * L, generator=torch.Generator().manual_seed(1))],
    "written": written,
    "flat as it lies": lambda x: x.reshape(-1, x.shape[-1]),
    "experts": experts,
    "experts, by index": experts_by_index,
}
ROWS = {
    "sorted": lambda x: x[order(x)],
    "gather": lambda x: x.gather(0, order(x).view(-1, 1, 1).expand_as(x)),
    "sorted and back": lambda x: x[order(x)][order(x).argsort()],
    "padded again": lambda x: pad_packed_sequence(packed(x), batch_first=True, padding_value=-1.0, total_length=L)[0],
    "twice": lambda x: x[order(x)] * 2 - x[order(x)],
    "into a copy": lambda x: into(x.clone(), order(x), x),
    "half into a copy": lambda x: into(x.clone(), slice(0, 3), x[3:]),
    "index_add_": lambda x: torch.zeros_like(x).index_add_(0, order(x), x),
}
ALONE = ("sorted", "gather", "padded again", "into a copy", "index_add_")
FORMS = SELECTED | TOKENS | ROWS | {f"{name}, of rows": lambda x, f=ROWS[name]: f(x)[:, 0] for name in ALONE}
ASKED = {*TOKENS, *ROWS} - {"chosen", "written", "half into a copy"}
"""Forms after which an example's queries are still its tokens, one after another."""


class Net(nn.Module):
    def __init__(self, form, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.first, self.second, self.third = (nn.Linear(D, D, dtype=dtype) for _ in range(3))

    def forward(self, x, numbers):
        """What each slot of the second and third layer adds to the loss, and its sample's number."""
        moved = self.form(torch.cat([torch.tanh(self.first(x)), numbers], -1))
        hidden = torch.relu(self.second(moved[..., :-1])) + moved[..., :-1]
        return self.third(hidden).sin().sum(-1) * (moved[..., -1] >= 0), moved[..., -1]


def inputs(step):
    x = torch.randn(B, L, D, generator=torch.Generator().manual_seed(step))
    numbers = (torch.arange(B) + 100.0 * step).view(B, 1, 1).expand(B, L, 1)
    return x, numbers


class Nets(nn.Module):
    """A network for each of some forms."""

    def __init__(self, names):
        super().__init__()
        self.each = nn.ModuleList(Net(FORMS[name]) for name in names)

    def forward(self, x, numbers):
        return torch.stack([net(x, numbers)[0].sum() for net in self.each]).sum()


@dataclass
class Recorded:
    path: Path
    names: list[str]
    model: Nets
    weights: list[dict[str, torch.Tensor]]
    """Of all parameters, before each step."""

    @cached_property
    def memory(self):
        return dualform.open(self.path)

    @cached_property
    def spaces(self):
        return {layer.name: layer.space for layer in self.memory.info().layers}

    def layer(self, name, part):
        return f"each.{self.names.index(name)}.{part}"


def recorded(path, names, batch_dim=None):
    model = Nets(names)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = Recorded(path, names, model, [])
    spaces = {found.layer(name, part): "token" for name in names if name in TOKENS for part in ("second", "third")}
    with dualform.Recorder(model, optimizer, path, spaces=spaces, quiet=True) as recorder:
        for step in range(2):
            x, numbers = inputs(step)
            found.weights.append({key: own.clone() for key, own in model.state_dict().items()})
            said = {"label": torch.arange(B) % 3, "sample": numbers[:, 0, 0].long()}
            with recorder.step(**said, at={"token": {"tens": 10 * torch.arange(B)}}, batch_dim=batch_dim):
                learn(optimizer, model(x, numbers))
        recorder.query_set("test", inputs(0))
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("asked") / "m", [name for name in FORMS if name in ASKED])


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("others") / "m", [name for name in FORMS if name not in ASKED])


@pytest.mark.parametrize("name", FORMS)
def test_slots_of_each_sample_make_the_gradient_of_its_own_loss(asked, others, name):
    found = asked if name in ASKED else others
    layers = [found.layer(name, part) for part in ("second", "third")]
    slots = {layer: _slots_of(found.memory, layer, found.spaces[layer]) for layer in layers}
    exact, prefix = Net(FORMS[name], torch.float64), found.layer(name, "")
    for step, own in some(enumerate(found.weights)):
        exact.load_state_dict({key.removeprefix(prefix): w for key, w in own.items() if key.startswith(prefix)})
        x, numbers = inputs(step)
        losses, samples = exact(x.double(), numbers.double())
        for sample in range(100 * step, 100 * step + B):
            gradients = torch.autograd.grad(
                losses[samples == sample].sum(), [exact.second.weight, exact.third.weight], retain_graph=True
            )
            for layer, expected in zip(slots, gradients, strict=True):
                keys, values, table = slots[layer]
                mine = table["sample"] == sample
                np.testing.assert_allclose(values[mine].T @ keys[mine], expected, atol=2e-6, err_msg=layer)
                assert (table["label"][mine] == sample % 100 % 3).all()
                assert (table["row"][mine] == sample % 100).all()
                if found.spaces[layer] == "token":
                    assert (table["tens"][mine] == 10 * (sample % 100)).all()


def _slots_of(memory, layer, space):
    """Keys and values in float64, and the columns of their slots."""
    keys, values = (own.astype(np.float64) for own in (memory.keys(layer), memory.values(layer)))
    every = memory.topk(layer, np.ones(D, np.float32), k=len(keys))
    table = memory.slots(np.sort(np.ravel(every.slots)), space)
    return keys, values, {name: np.ma.filled(own, -1) for name, own in table.items() if name not in ("dataset",)}


def check_queries(recorded):
    """An example's queries are its tokens after one another."""
    x, numbers = inputs(0)
    live = recorded.memory.queries(recorded.model, (x, numbers))
    for name, net in some(zip(recorded.names, recorded.model.each, strict=True)):
        layer, hidden = recorded.layer(name, "second"), torch.tanh(net.first(x)).detach()
        real = torch.ones(B, L, 1, dtype=torch.bool) if name != "padded again" else net.form(numbers) >= 0
        for found in (recorded.memory.query_set("test", layer).queries, live[layer].rows):
            shown = torch.as_tensor(found).view(B, L, D)
            np.testing.assert_allclose(shown.where(real, 0.0), hidden.where(real, 0.0), atol=1e-6, err_msg=name)


def test_queries_of_an_example_are_its_tokens(asked):
    check_queries(asked)


def test_where_nothing_is_followed_what_is_said_of_a_list_of_tokens_holds_of_its_queries_too(tmp_path, monkeypatch):
    monkeypatch.setattr(FollowedRows, "of", lambda *_: None)  # as in compiled code
    said = {"each.0.second": 1, "each.0.third": 1}
    found = recorded(tmp_path / "m", ["time first"], batch_dim=said)
    check_queries(found)
    assert found.memory.info().query_sets[0].examples == B


def through_a_view(x):
    made = torch.zeros_like(x)
    made.view(B, D)[x[:, 0].argsort()] = x
    return made


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        halved = torch.empty_like(x)
        halved.numpy()[:] = x.numpy() / 2
        return halved

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Other(nn.Module):
    """Layers that see as many rows as the batch, of which nothing tells which row of the batch each is."""

    def __init__(self, kinds):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.seconds = nn.Linear(D, D), nn.ModuleDict({kind: nn.Linear(D, D) for kind in kinds})
        self.register_buffer("classes", torch.randn(B, D))
        self.held, self.last = torch.randn(B, D), torch.randn(B, D)
        self.own = nn.Parameter(torch.randn(B, D))

    def next(self, x):
        before, self.last = self.last, x.detach()
        return before

    def forward(self, x):
        return self.first(x).sum() + sum(
            second(OTHERS[kind](self, x)).square().sum() for kind, second in self.seconds.items()
        )


OTHERS = {
    "buffer": lambda model, x: model.classes,
    "attribute": lambda model, x: model.held,
    "parameter, changed": lambda model, x: nn.functional.normalize(model.own, dim=-1) * 2,
    "sorted by column": lambda model, x: x.sort(0).values,
    "unique": lambda model, x: x.unique(dim=0),
    "upside down": lambda model, x: torch.flipud(x),
    "as strides": lambda model, x: x.as_strided((B, D), (1, B)),
    "written through a view": lambda model, x: through_a_view(x),
    "several to one": lambda model, x: torch.zeros_like(x).index_add_(0, torch.tensor([0, 0, 1, 2, 3, 3]), x),
    "an attribute of the last step": lambda model, x: model.next(x),
    "a kernel": lambda model, x: Halved.apply(x[x[:, 0].argsort()].requires_grad_()),
    "by a list": lambda model, x: torch.tensor(x.tolist()[::-1]),
    "other rows added": lambda model, x: x[x[:, 0].argsort()] + x.flip(0),
    "either of two": lambda model, x: torch.where(x.sum(1, keepdim=True) > 0, x[x[:, 0].argsort()], x),
}


def test_rows_that_cannot_be_followed_are_null_and_told_of_once(tmp_path):
    model = Other(OTHERS)
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "m", quiet=True)
    with warnings.catch_warnings(record=True) as told, recorder:
        warnings.simplefilter("always")
        for step in range(3):
            with recorder.step(label=torch.arange(B), sample=torch.arange(B) + 10 * step):
                model(torch.randn(B, D)).backward()
    for kind in OTHERS:
        layer = f"seconds.{kind}"
        (message,) = (str(own.message) for own in told if f"'{layer}'" in str(own.message))
        assert message.startswith(f"the rows of layer '{layer}' are unknown at step 0: ")
        assert f"batch_dim={{'{layer}': 0}}" in message
    assert len(told) == len(OTHERS)
    with dualform.open(tmp_path / "m") as memory:
        reconstructions = memory.verify()
        for layer in memory.info().layers:
            keys, _, table = _slots_of(memory, layer.name, layer.space)
            for column in ("row", "sample", "label"):
                assert ((table[column] >= 0) == (layer.name == "first")).all(), (layer.name, column)
            assert len(keys) == 3 * B
            assert reconstructions[layer.name].reconstruction_error < 1e-5, layer.name
        assert len(reconstructions) == len(OTHERS) + 1


def test_rows_that_are_said_to_be_the_batchs_are_so(tmp_path):
    model = Other(["buffer", "unique", "a kernel"])
    layers = [f"seconds.{kind}" for kind in model.seconds]
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "m", quiet=True)
    with recorder, recorder.step(label=torch.arange(B), batch_dim=dict.fromkeys(layers, 0)):
        model(torch.randn(B, D)).backward()
    with dualform.open(tmp_path / "m") as memory:
        for layer in layers:
            assert _slots_of(memory, layer, "sample")[2]["label"].tolist() == [*range(B)]


ORDER = torch.tensor([3, 1, 0, 5, 4, 2])


def filled(write):
    """A buffer of the batch's shape after rows were written to it."""

    def form(x):
        rows = torch.zeros_like(x)
        write(rows, x)
        return rows

    return form


def halves(rows, x):
    rows[:3], rows[3:] = x[3:], x[:3]


def each_row(rows, x):
    for row in range(B):
        rows[row] = x[B - 1 - row]


def parts(rows, x):
    for part, new in zip(rows.chunk(2), (x[3:], x[:3]), strict=True):
        part.copy_(new)


def swapped(x):
    rows = x.clone()
    rows[[0, 1]] = x[[1, 0]]
    return rows


def data(rows, x):
    rows.data = x.flip(0)


def wide(x):
    return ORDER.view(-1, *[1] * (x.dim() - 1)).expand_as(x)


def experts_added(x):
    found, chosen = torch.zeros_like(x), x[:, 0, 2] > 0
    for rows in (chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]):
        found.index_add_(0, rows, x[rows])
    return found.flip(0)


KNOWN = {
    "index_select": lambda x: x.index_select(0, ORDER),
    "take_along_dim": lambda x: x.take_along_dim(ORDER.view(-1, 1, 1), 0),
    "flipped": lambda x: x.flip(0),
    "rolled": lambda x: torch.roll(x, 2, 0),
    "chunks swapped": lambda x: torch.cat(x.chunk(3)[::-1]),
    "by a list": lambda x: x[[3, 1, 0, 5, 4, 2]],
    "cat, from the end": lambda x: torch.cat([x[3:], x[:3]], -3),
    "vstack": lambda x: torch.vstack([x[3:], x[:3]]),
    "einsum without ->": lambda x: torch.einsum("abc,cd", x[ORDER], torch.eye(D)),
    "where, a method": lambda x: x[ORDER].where(torch.ones(1, dtype=torch.bool), torch.zeros(())),
    "into empty": lambda x: into(torch.empty_like(x), ORDER, x),
    "index_copy": lambda x: torch.zeros_like(x).index_copy(0, ORDER, x),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, wide(x), x),
    "scatter_add_": lambda x: torch.zeros_like(x).scatter_add_(0, wide(x), x),
    "subset written back": lambda x: into(x.clone(), ORDER[:2], x[ORDER[:2]]),
    "copied": filled(lambda rows, x: rows.copy_(x[ORDER])),
    "written at a slice": filled(lambda rows, x: rows.__setitem__(slice(None), x[ORDER])),
    "written at numbers": filled(lambda rows, x: rows.__setitem__(ORDER, x)),
    "written at a mask": filled(
        lambda rows, x: (rows.__setitem__(ORDER > 2, x[:3]), rows.__setitem__(ORDER < 3, x[3:]))
    ),
    "written in halves": filled(halves),
    "written one by one": filled(each_row),
    "two swapped": swapped,
    "added in place": filled(lambda rows, x: rows.add_(x[ORDER])),
    "index_copy_": filled(lambda rows, x: rows.index_copy_(0, ORDER, x)),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, ORDER, x),
    "index_put": lambda x: torch.zeros_like(x).index_put((ORDER,), x),
    "scatter_": filled(lambda rows, x: rows.scatter_(0, wide(x), x)),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, wide(x), x),
    "experts add": experts_added,
    "data": filled(data),
    "out": filled(lambda rows, x: torch.mul(x[ORDER], 1, out=rows)),
    "deepcopy": lambda x: copy.deepcopy(x.flip(0)),
    "looked up in the batch": lambda x: nn.functional.embedding(ORDER, x.flatten(1)).view_as(x),
    "one row for all": lambda x: x[0].expand(B, -1, -1),
}
UNKNOWN = {
    "slice_scatter": lambda x: torch.zeros_like(x).slice_scatter(x[3:], 0, 0, 3).slice_scatter(x[:3], 0, 3, 6),
    "select_scatter": lambda x: x.select_scatter(x[1], 0, 0).select_scatter(x[0], 0, 1),
    "in lists of tensors": filled(lambda rows, x: torch._foreach_copy_([rows], [x.flip(0)])),
    "flipud": torch.flipud,
    "reversed": lambda x: reversed(x),
    "vsplit": lambda x: torch.cat(torch.vsplit(x, 2)[::-1]),
    "parts of a buffer": filled(parts),
    "masked_scatter": lambda x: x.clone().masked_scatter_(torch.ones_like(x, dtype=torch.bool), x.flip(0)),
    "rot90": lambda x: x.rot90(2, (0, 1)).flip(1),
    "padded": lambda x: nn.functional.pad(x, (0, 0, 0, 0, 2, 0))[:B],
    "windows": lambda x: nn.functional.pad(x, (0, 0, 0, 0, 1, 0)).unfold(0, 1, 1)[:B].squeeze(-1),
    "matrix of the step": lambda x: (torch.eye(B)[ORDER] @ x.flatten(1)).view_as(x),
    "einsum": lambda x: torch.einsum("ij,j...->i...", torch.eye(B)[ORDER], x),
    "tensordot": lambda x: torch.tensordot(torch.eye(B)[ORDER], x, 1),
    "addmm": lambda x: torch.addmm(torch.zeros(1), torch.eye(B)[ORDER], x.flatten(1)).view_as(x),
    "sparse": lambda x: torch.sparse.mm(torch.eye(B)[ORDER].to_sparse(), x.flatten(1)).view_as(x),
    "nested": lambda x: torch.nested.nested_tensor(list(x.flip(0))).to_padded_tensor(0.0),
    "pairs": lambda x: (x[:, :1] * torch.ones(1, B, 1)).flatten(0, 1)[:B].unsqueeze(1).expand(-1, L, -1),
    "spread": lambda x: (x[:, 0] * torch.ones(B, 1, 1)).flatten(0, 1)[:B].unsqueeze(1).expand(-1, L, -1),
}


class Numbered(nn.Module):
    """For each form a layer; the first column of its keys is the number of the row that it was."""

    def __init__(self, forms):
        super().__init__()
        torch.manual_seed(0)
        self.forms, self.first = forms, nn.Linear(D, D)
        self.seconds = nn.ModuleList(nn.Linear(D, D) for _ in forms)

    def forward(self, x):
        seconds = zip(self.seconds, self.forms, strict=True)
        return self.first(x).sum() + sum(second(form(x)).square().sum() for second, form in seconds)


@pytest.mark.filterwarnings("ignore:the rows of layer:RuntimeWarning", "ignore:The PyTorch API of nested:UserWarning")
def test_rows_written_over_or_mixed_by_a_matrix_are_those_of_their_keys_or_null(tmp_path):
    for name, found in columns_of_numbered(tmp_path / "m", KNOWN | UNKNOWN, L):
        if name in KNOWN:
            assert found["row"].tolist() == found["label"].tolist() == found["key"].tolist(), name
            assert found["sample"].tolist() == (found["key"] + 10).tolist(), name
        else:
            assert (found["row"] == -1).all(), name
            assert (found["sample"] == -1).all(), name


@pytest.mark.filterwarnings("ignore:the rows of layer:RuntimeWarning")
def test_as_many_tokens_as_rows_are_not_taken_for_the_batch(tmp_path):
    forms = {
        "first row": lambda x: x[0],
        "mean": lambda x: x.mean(0),
        "largest": lambda x: x.max(0).values,
        "einsum": lambda x: torch.einsum("bld->ld", x),
        "time first, mean": lambda x: x.transpose(0, 1).mean(1),
        "first tokens": lambda x: x.flatten(0, 1)[:B],
    }
    for name, found in columns_of_numbered(tmp_path / "m", forms, B, batch_dim=0):
        assert (found["row"] == (0 if name.startswith("first") else -1)).all(), name


def columns_of_numbered(path, forms, length, **said):
    """What a step says of the slots of each form."""
    model, x = Numbered([*forms.values()]), torch.randn(B, length, D, generator=torch.Generator().manual_seed(1))
    x[..., 0] = torch.arange(B)[:, None]
    spaces = {f"seconds.{number}": f"own_{number}" for number in range(len(forms))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = dualform.Recorder(model, optimizer, path, quiet=True, spaces=spaces)
    with recorder, recorder.step(label=torch.arange(B), sample=torch.arange(B) + 10, **said):
        model(x).backward()
    with dualform.open(path) as memory:
        for name, (layer, space) in zip(forms, spaces.items(), strict=True):
            keys, _, columns = _slots_of(memory, layer, space)
            yield name, columns | {"key": keys[:, 0].astype(int)}


class Ordinary(nn.Module):
    """Layers that take the batch's rows in their order, whatever was done on the way."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.second, self.head = kind, nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 3)
        self.time_first = nn.GRU(D, D)

    def forward(self, x):
        return self.head(getattr(self, self.kind)(x))

    def mixup(self, x):
        h, other = torch.relu(self.first(x[:, 0])), torch.randperm(B)
        return self.second(0.7 * h + 0.3 * h[other])

    def packed_last(self, x):
        return nn.LSTM(D, D, batch_first=True)(packed(self.first(x)))[1][0][-1]

    def last_states(self, x):
        return self.second(self.time_first(self.first(x).transpose(0, 1))[1].transpose(0, 1).flatten(1))

    def attended_by_hand(self, x):
        h = self.first(x).transpose(0, 1)
        q = self.second(h).contiguous().view(L, B * 1, D).transpose(0, 1)
        mixed = torch.bmm(torch.bmm(q, q.mT).softmax(-1), q)
        return self.second(mixed.transpose(0, 1).contiguous().view(L, B, D) + h)[0]

    def pair(self, x):
        return self.second(self.first(torch.cat([x[:, 0], x[:, 1]])))

    def target(self, x):
        with torch.no_grad():
            aim = self.second(x[:, 0])
        return self.second(self.first(x[:, 0])) * aim.detach()


ORDINARY = [name for name, own in vars(Ordinary).items() if callable(own) and not name.startswith("_")]
ORDINARY = [name for name in ORDINARY if name != "forward"]


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_networks_have_the_batchs_rows_in_their_order(tmp_path, kind):
    model = Ordinary(kind)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for step in range(2):
            label = torch.arange(B) if kind != "pair" else torch.arange(2 * B)
            with opened.recorder.step(label=label, batch_dim={"first": 0} if kind == "last_states" else None):
                out = model(torch.randn(B, L, D, generator=torch.Generator().manual_seed(step)))
                out.square().mean().backward()
    assert all(extent.row is None for batch in some(opened.sink.recorded) for extent in some(batch.extents))


TURNED = {
    "roll": lambda x: x.roll(1, 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0, 3, 1])),
}


class Turned(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.first, self.second, self.turn = nn.Linear(D, D), nn.Linear(D, D), turn

    def forward(self, x):
        return self.first(self.turn(x)) + self.second(x)


@pytest.mark.parametrize("turn", TURNED.values(), ids=TURNED)
def test_tokens_that_change_places_keep_their_position_and_columns(tmp_path, turn):
    def made(step):
        return torch.arange(B)[:, None, None] + 100.0 * step + torch.arange(L)[:, None] / 64

    table = numbered(tmp_path / "m", Turned(turn), made, steps=3)
    np.testing.assert_array_equal(table["position"], table["key"] % 1 * 64)
    np.testing.assert_array_equal(table["word"], table["key"])


def test_a_tensor_that_is_written_token_by_token(tmp_path):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(D, D)

        def forward(self, x):
            out, order = torch.zeros_like(x), x[:, 0, 0].argsort(descending=True)
            for token in range(x.shape[1]):
                out[:, token] = x[order, token]
            return self.first(out)

    def made(step):
        return torch.arange(B)[:, None, None] + 100.0 * step + torch.arange(600)[:, None] / 1024

    table = numbered(tmp_path / "m", Written(), made, steps=2)
    np.testing.assert_array_equal(table["word"], table["key"])


class Rarely(nn.Module):
    """Moves rows in one late step alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, 1)
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.second(torch.tanh(self.first(x.flip(0) if self.step == 22 else x)))


def test_parameters_may_be_swapped(tmp_path):
    model = Rarely()
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "m", quiet=True)
    with recorder, recorder.step():
        model(torch.randn(B, D)).square().mean().backward()
        torch.utils.swap_tensors(model.first.weight, nn.Parameter(model.first.weight.detach().clone()))


class Alone(nn.Module):
    """A single layer, which takes tokens as one list."""

    def __init__(self, time_first):
        super().__init__()
        self.first, self.time_first = nn.Linear(D, D), time_first

    def forward(self, x):
        return self.first((x.transpose(0, 1) if self.time_first else x).reshape(-1, D))


def test_rows_that_move_in_one_step_of_many_are_followed(tmp_path):
    numbered(tmp_path / "m", Rarely(), lambda step: torch.arange(B)[:, None] + 100.0 * step, steps=30)


@pytest.mark.parametrize(("time_first", "spaces"), [(True, None), (False, {"first": "token"})])
def test_a_list_of_tokens_in_the_only_layer(tmp_path, time_first, spaces):
    def made(step):
        return torch.arange(B)[:, None, None] + 100.0 * step + torch.arange(L)[:, None] / 64

    table = numbered(tmp_path / "m", Alone(time_first), made, steps=3, words=False, spaces=spaces)
    np.testing.assert_array_equal(table["position"], table["key"] % 1 * 64)


def numbered(path, model, made, steps, words=True, **options):
    """Records batches whose entries are 100 * step + row, and compares the columns of the first layer with its keys."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dualform.Recorder(model, optimizer, path, quiet=True, **options) as recorder:
        for step in range(steps):
            x = made(step)
            columns = {"word": x[..., 0]} if words else {}
            with recorder.step(sample=100 * step + torch.arange(B), **columns):
                model(x.expand(*x.shape[:-1], D)).square().mean().backward()
                optimizer.step()
    with dualform.open(path) as memory:
        space = next(layer.space for layer in memory.info().layers if layer.name == "first")
        key = memory.keys("first")[:, 0]
        table = {name: np.ma.filled(own, -1) for name, own in memory.slots(range(len(key)), space).items()}
        table["key"] = key
    np.testing.assert_array_equal(table["sample"], np.floor(table["key"]))
    np.testing.assert_array_equal(table["row"], np.floor(table["key"]) % 100)
    return table
