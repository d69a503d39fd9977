"""Views: parts of one stored layer that are asked like layers; against layers of their own, trained beside."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import BadInput, NotFound
from tests.cases import pairwise
from tests.record.taps.block_trainings import adamw, assert_exact, sgd
from tests.record.taps.test_convolution import CLASSES
from tests.trainings import record_steps, take_steps

STEPS, B, G = 8, 4, 3


class Grouped(nn.Module):
    """A convolution of three groups, or the three convolutions that it is; and a depthwise one, or an ordinary one."""

    def __init__(self, apart=False, depthwise=True, kind=nn.Conv2d, **options):
        super().__init__()
        torch.manual_seed(0)
        options = {"kernel_size": 3, **options}
        whole = kind(2 * G, 4 * G, groups=G, **options)
        self.first = whole
        if apart:
            self.first = nn.ModuleList(kind(2, 4, **options) for _ in range(G))
            for number, part in enumerate(self.first):
                part.load_state_dict({name: own.chunk(G)[number] for name, own in whole.state_dict().items()})
        torch.manual_seed(1)
        self.second = kind(4 * G, 8 * G, kernel_size=2, groups=4 * G if depthwise else 1)
        self.head = nn.Linear(8 * G, CLASSES)

    def forward(self, x):
        if isinstance(self.first, nn.ModuleList):
            x = torch.cat([part(own) for part, own in zip(self.first, x.chunk(G, 1), strict=True)], 1)
        else:
            x = self.first(x)
        return self.head(torch.relu(self.second(torch.relu(x))).flatten(2).mean(2))


def train(model, path, make=sgd, size=(6, 5), recorder=dualform.Recorder, **options):
    """Every image comes twice. Returns the recorder."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(STEPS * B // 2, 2 * G, *size, generator=generator)
    labels = torch.randint(0, CLASSES, (len(images),), generator=generator)
    optimizer = make(model)
    with recorder(model, optimizer, path, **options) as recording:
        take_steps(
            recording,
            optimizer,
            ((step, torch.arange(step * B, step * B + B) % len(images)) for step in range(STEPS)),
            lambda step, index: cross_entropy(model(images[index]), labels[index]),
            dataset=lambda step, index: "a" if step < 5 else "b",
            label=lambda step, index: labels[index],
            sample=lambda step, index: index,
        )
        if recorder is dualform.Recorder:
            recording.query_set("test", images[:3], label=labels[:3])
    return recording


@pytest.fixture(scope="module")
def memories(tmp_path_factory):
    """Of the grouped convolution, and of the convolutions that it is."""
    path = tmp_path_factory.mktemp("views")
    live = Grouped()
    train(live, path / "whole")
    train(Grouped(apart=True), path / "apart")
    with dualform.open(path / "whole") as whole, dualform.open(path / "apart") as apart:
        yield whole, apart, live


@pytest.fixture(params=[0, 2], ids=lambda number: f"first.{number}")
def name(request):
    return f"first.{request.param}"


def queries(memory, name):
    return memory.keys(name, [1, 7, 30]) + np.float32(0.25)


def test_keys_and_values_of_a_group(memories, name):
    whole, apart, _ = memories
    np.testing.assert_array_equal(whole.keys(name), apart.keys(name))
    np.testing.assert_allclose(whole.values(name), apart.values(name), atol=1e-6)
    np.testing.assert_array_equal(whole.key_rows(name, [0, 5, 200]), whole.key_rows("first", [0, 5, 200]))
    number = int(name[-1])
    np.testing.assert_array_equal(whole.keys("first").reshape(-1, G, 18)[:, number], whole.keys(name))
    np.testing.assert_array_equal(whole.values("first")[:, 4 * number : 4 * number + 4], whole.values(name))


@pytest.fixture(scope="module", params=["numpy", "int8"])
def both(request, memories):
    return [dualform.open(memory.path, backend=request.param) for memory in memories[:2]]


def test_scores_of_a_group_are_those_of_a_layer_of_its_own(both, name):
    own = queries(both[1], name)
    cases = ((None, None), ("label", None), (None, "label = 1 OR dataset = 'b'"))
    for score, (by, where) in pairwise(("dot", "abs", "cosine"), cases):
        found, wanted = (m.topk(name, own, k=4, where=where, by=by, score=score) for m in both)
        assert found.ids.tobytes() == wanted.ids.tobytes()
        assert found.flat_scores.tobytes() == wanted.flat_scores.tobytes()
    for score in ("dot", "abs", "cosine"):
        found, wanted = (m.group_sum(name, own, by="label", where="dataset = 'a'", score=score) for m in both)
        assert found.sums.tobytes() == wanted.sums.tobytes()


def test_questions_of_a_group_are_answered_as_of_a_layer_of_its_own(memories, name):
    whole, apart, _ = memories
    own, softmax = queries(apart, name), {"where": "label = 1", "kernel": "softmax", "temperature": 2.0}
    outputs = [{"where": w, "at_step": s, "initial": i} for w, s, i in ((None, 7, True), ("label = 1", None, False))]
    for asked in (*outputs, {"at_step": 0}, softmax):
        found, wanted = (np.asarray(m.output(name, own, **asked)) for m in (whole, apart))
        np.testing.assert_allclose(found, wanted, atol=2e-6)
    for asked in (dualform.SlotKeys([3, 40]), "test"):
        found, wanted = (m.topk(name, asked, k=2) for m in (whole, apart))
        assert (found.ids.tobytes(), found.flat_scores.tobytes()) == (
            wanted.ids.tobytes(),
            wanted.flat_scores.tobytes(),
        )
    ids = np.arange(0, 200, 7)
    np.testing.assert_allclose(whole.coefficients(name, ids), apart.coefficients(name, ids), rtol=1e-6)
    found, wanted = (m.cancellation("label <> 1", layer=name)[name] for m in (whole, apart))
    assert found == pytest.approx(wanted, rel=1e-4)
    np.testing.assert_array_equal(whole.query_set("test", name).queries, apart.query_set("test", name).queries)


def test_outputs_of_the_whole(memories):
    whole, _, live = memories
    maps = torch.randn(2, 2 * G, 3, 3, generator=torch.Generator().manual_seed(3))
    found = np.asarray(whole.output("first", maps.flatten(1).numpy()))
    np.testing.assert_allclose(found, live.first(maps).detach().flatten(1).numpy(), atol=2e-6)
    parts = [np.asarray(whole.output(f"first.{n}", maps[:, 2 * n : 2 * n + 2].flatten(1).numpy())) for n in range(G)]
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))


def test_masked_weights_are_those_of_the_layers_it_is(memories):
    whole, apart, _ = memories
    for asked in ({"where": "label = 1"}, {"at_step": 5}):
        found, parts = whole.weights(**asked), apart.weights(**asked)
        wanted = torch.cat([parts[f"first.{number}.weight"] for number in range(G)])
        torch.testing.assert_close(found["first.weight"], wanted, rtol=0, atol=2e-6)
        biases = torch.cat([parts[f"first.{number}.bias"] for number in range(G)])
        torch.testing.assert_close(found["first.bias"], biases, rtol=0, atol=2e-6)


def test_how_far_a_mask_moves_a_group_under_adam(tmp_path):
    train(Grouped(), tmp_path / "whole", adamw)
    train(Grouped(apart=True), tmp_path / "apart", adamw)
    with dualform.open(tmp_path / "whole") as whole, dualform.open(tmp_path / "apart") as apart:
        for name in ("first.0", "first.2"):
            found, wanted = (m.cancellation("label <> 1", layer=name).concentrations[name] for m in (whole, apart))
            assert (found.share, found.greatest) == pytest.approx((wanted.share, wanted.greatest), rel=1e-2)
            outputs = [np.asarray(m.output(name, queries(apart, name), where="label = 1")) for m in (whole, apart)]
            np.testing.assert_allclose(*outputs, atol=1e-4)


def test_cancellation_of_the_whole(memories):
    whole, _, _ = memories
    ids = np.arange(len(whole.keys("first")))
    removed = ~np.isin(whole.slots(ids, "first")["label"], [0, 2])
    shares = whole.coefficients("first", ids)[removed, None, None, None] * np.einsum(
        "tgo,tgi->tgoi",
        whole.values("first")[removed].astype(np.float64).reshape(-1, G, 4),
        whole.keys("first")[removed].astype(np.float64).reshape(-1, G, 18),
    )
    wanted = np.linalg.norm(shares.reshape(len(shares), -1), axis=1).sum() / np.linalg.norm(shares.sum(0))
    assert whole.cancellation("label <> 1", layer="first")["first"] == pytest.approx(wanted, rel=1e-6)


def test_names(memories):
    whole, _, _ = memories
    views = {layer.name: layer.views for layer in whole.info().layers}
    assert views["first"] == ("first.0", "first.1", "first.2")
    assert len(views["second"]) == 4 * G
    assert views["head"] == ()
    for unknown in ("first.3", "first.01", "first.-1", "first.²", "head.0"):
        with pytest.raises(NotFound, match=f"There is no layer '{unknown}'"):
            whole.topk(unknown, "test")


def test_the_whole_name_has_no_scores(memories):
    whole, _, _ = memories
    own = queries(whole, "first")
    message = (
        r"^Layer 'first' has 3 groups of channels, which are queried one at a time\. Pass "
        r"layer='first\.0' … 'first\.2'\.$"
    )
    for ask in (
        lambda: whole.topk("first", own),
        lambda: whole.group_sum("first", own, by="label"),
        lambda: whole.output("first", own, kernel="softmax", temperature=1.0),
    ):
        with pytest.raises(BadInput, match=message):
            ask()


def test_entries_of_large_groups_are_watched(tmp_path):
    """Beyond the size that is taken whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(64, 64, 5, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES))
    optimizer = adamw(model)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        5,
        lambda _: cross_entropy(model(torch.randn(B, 64, 6)), torch.arange(B) % CLASSES),
    )
    with dualform.open(tmp_path / "m") as memory:
        assert_exact(memory, ["0", "3"])
        assert memory.topk("0.1", memory.keys("0.1", [5]), k=1).ids.tolist() == [5]


def test_a_rerun_has_the_stored_memorys_answers(tmp_path, memories):
    (whole, apart, _), name = memories, "first.1"
    train(Grouped(), tmp_path / "m", keys=False)
    own = queries(apart, name)
    model, asked = Grouped(), [dualform.TopK(name, own, k=5), dualform.GroupSum(name, own, by=("label",))]
    hits, sums = train(model, tmp_path / "m", recorder=lambda *of: dualform.Rerun(*of, asked)).answers()
    assert hits.flat_scores.tobytes() == whole.topk(name, own, k=5).flat_scores.tobytes()
    assert sums.sums.tobytes() == whole.group_sum(name, own, by="label").sums.tobytes()
