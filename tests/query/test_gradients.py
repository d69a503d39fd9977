"""Dot products of gradients, against autograd in float64, and the best slots as the screen finds them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform import kernels
from dualform.errors import BadInput, EmptyMask, Inexact, NotFound
from dualform.questions import ExampleGradients, LayerGradients
from tests.cases import some
from tests.query.networks import Images
from tests.store.small_memory import TOKENS, open_writer, token_batch
from tests.trainings import learn, record_steps

CLASSES, ROWS, STEPS, TESTS = 3, 4, 5, 3


class Words(nn.Module):
    """A table, a recurrent layer and a head whose weight is the table's."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.words, self.inner, self.head = (
            nn.Embedding(CLASSES, 4),
            kind(4, 4, batch_first=True),
            nn.Linear(4, CLASSES),
        )
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.inner(self.words(words))[0]).mean(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, tokens):
        return self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES)), lambda n: torch.randn(n, 5)),
    "images": (lambda: Images(bias=False), lambda n: torch.randn(n, 4, 5, 5)),
    "words": (Words, lambda n: torch.randint(0, CLASSES, (n, 6))),
    "gated words": (lambda: Words(nn.GRU), lambda n: torch.randint(0, CLASSES, (n, 6))),
    "attention": (Attention, lambda n: torch.randn(n, 3, 4)),
}


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels, reduction="none")


class Case:
    """A network recorded for some steps, and what autograd makes of each sample's loss at the weights of its step."""

    def __init__(self, name, path):
        torch.manual_seed(0)
        build, draw = NETWORKS[name]
        self.model = build()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3, momentum=0.5)
        self.gradients = []
        with dualform.Recorder(self.model, optimizer, path, quiet=True) as recorder:
            for step in range(STEPS):
                inputs, labels = draw(ROWS), torch.randint(0, CLASSES, (ROWS,))
                self.gradients += [self.gradient_of(inputs[i : i + 1], labels[i : i + 1]) for i in range(ROWS)]
                with recorder.step(label=labels, sample=torch.arange(ROWS) + ROWS * step):
                    learn(optimizer, loss(self.model(inputs), labels).sum())
        self.tests = draw(TESTS), torch.randint(0, CLASSES, (TESTS,))
        self.memory = dualform.open(path)
        self.asked = self.memory.gradients(self.model, *self.tests, loss)

    def gradient_of(self, inputs, labels):
        """By parameter, float64: of one sample's loss, at the weights as they are."""
        double = {name: own.detach().double().requires_grad_() for name, own in self.model.named_parameters()}
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        found = torch.func.functional_call(self.model, double, (inputs,))
        return dict(zip(double, torch.autograd.grad(loss(found, labels).sum(), list(double.values())), strict=True))

    def dot_products(self, names=None):
        """float64[tests, samples]: of all parameters, or of some."""
        tests = [self.gradient_of(self.tests[0][i : i + 1], self.tests[1][i : i + 1]) for i in range(TESTS)]
        return np.array(
            [
                [sum(float((one[name] * other[name]).sum()) for name in names or one) for other in self.gradients]
                for one in tests
            ]
        )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Each network is recorded once, by name."""
    return cache(lambda name: Case(name, tmp_path_factory.mktemp("gradients") / "m"))


@pytest.fixture(params=NETWORKS)
def case(request, recorded):
    return recorded(request.param)


@pytest.fixture
def mlp(recorded):
    return recorded("mlp")


def test_sums_by_sample_are_autograds(case):
    found = case.memory.group_sum("*", case.asked, by="sample", score="gradient")
    assert found.groups == tuple((sample,) for sample in range(ROWS * STEPS))
    right = case.dot_products()
    assert np.abs(found.sums - right).max() <= 1e-5 * np.abs(right).max()


def test_one_layer_has_its_own_parameters(mlp):
    for layer in ("0", "2"):
        found = mlp.memory.group_sum(layer, mlp.asked, by="sample", score="gradient")
        right = mlp.dot_products([f"{layer}.weight", f"{layer}.bias"])
        assert np.abs(found.sums - right).max() <= 1e-5 * np.abs(right).max()
    both = mlp.memory.group_sum(["2", "0"], mlp.asked, by="sample", score="gradient").sums
    assert both.tobytes() == mlp.memory.group_sum("*", mlp.asked, by="sample", score="gradient").sums.tobytes()


def test_the_best_slots_are_those_of_all_scores(mlp):
    every = mlp.memory.group_sum("*", mlp.asked, by="slot", score="gradient").sums
    for k, where in ((3, None), (100, None), (4, "label <> 1")):
        found = mlp.memory.topk("*", mlp.asked, k, where, score="gradient")
        stays = np.ones(ROWS * STEPS, bool)
        if where:
            stays = np.array([record["label"] != 1 for record in mlp.memory.slots(range(ROWS * STEPS)).records()])
        slots = np.flatnonzero(stays)
        for own, scores, sums in zip(found.slots, found.scores, every, strict=True):
            best = slots[np.lexsort((slots, -sums[slots]))][:k]
            assert own.tolist() == best.tolist()
            assert scores.tobytes() == sums[best].astype(np.float32).tobytes()


def test_examples_are_answered_alone_as_together(case, monkeypatch):
    together = case.memory.group_sum("*", case.asked, by="sample", score="gradient").sums
    monkeypatch.setattr("dualform.query.gradients.answers.BYTES", 1)  # one example at a time
    assert case.memory.group_sum("*", case.asked, by="sample", score="gradient").sums.tobytes() == together.tobytes()
    for i in range(TESTS):
        own = {
            name: LayerGradients(one.keys[one.of(i)], one.errors[one.of(i)], np.zeros(len(one.of(i)), dtype=int))
            for name, one in case.asked.layers.items()
        }
        alone = case.memory.group_sum("*", ExampleGradients(1, own), by="sample", score="gradient")
        assert alone.sums.tobytes() == together[i : i + 1].tobytes()


def test_the_largest_groups_are_those_of_all_sums(case):
    whole = case.memory.group_sum("*", case.asked, by="label", score="gradient")
    found = case.memory.group_sum("*", case.asked, by="label", score="gradient", k=2)
    for example in range(TESTS):
        assert found.ranked(example) == whole.ranked(example)[:2]
    assert found.total == len(whole.groups)


@pytest.mark.parametrize("where", [{"slot": [0, 1]}, "slot < 4"], ids=str)
def test_slots_of_several_spaces_are_not_named_by_number(case, where):
    asked = {"by": "sample", "score": "gradient", "where": where}
    if len({layer.space for layer in case.memory.info().layers}) > 1:
        with pytest.raises(BadInput, match="slots are numbered by space") as refused:
            case.memory.group_sum("*", case.asked, **asked)
        assert refused.value.hint == "Pass layers of one space."
    for layer in case.memory.info().layers:
        assert len(case.memory.group_sum(layer.name, case.asked, **asked).groups)


def test_batches_of_examples_give_the_same_gradients(case):
    one = case.memory.gradients(case.model, *case.tests, loss, batch_size=1)
    for name, own in some(case.asked.layers.items()):
        assert own.examples.tolist() == one.layers[name].examples.tolist()
        np.testing.assert_allclose(own.errors, one.layers[name].errors, rtol=1e-5, atol=1e-7)


def test_rows_that_examples_share_are_taken_one_example_at_a_time(tmp_path):
    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.head = nn.Embedding(3, 4), nn.Linear(4, CLASSES)

        def forward(self, tokens):
            return self.head((tokens + self.places(torch.arange(3))).tanh().mean(1))

    torch.manual_seed(0)
    model = Places()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True),
        optimizer,
        2,
        lambda _: loss(model(torch.randn(4, 3, 4)), torch.zeros(4, dtype=torch.long)).sum(),
    )
    memory = dualform.open(tmp_path / "m")
    found = memory.gradients(model, torch.randn(2, 3, 4), torch.zeros(2, dtype=torch.long), loss)
    assert found.layers["places"].examples.tolist() == [0, 0, 0, 1, 1, 1]


def test_layers_without_gradients_are_named(tmp_path):
    class Tapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.randn(4, 5)), nn.Linear(4, CLASSES)

        def forward(self, inputs):
            return self.head(dualform.tap(inputs, self.weight, "own").tanh())

    torch.manual_seed(0)
    model = Tapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step():
            loss(model(torch.randn(4, 5)), torch.zeros(4, dtype=torch.long)).sum().backward()
            optimizer.step()
        with pytest.warns(RuntimeWarning, match="query set 'test' has no gradients in 'own'"):
            recorder.query_set("test", torch.randn(2, 5), torch.tensor([0, 1]), loss=loss)
    memory = dualform.open(tmp_path / "m")
    with pytest.warns(RuntimeWarning, match="gradients has no gradients in 'own'"):
        memory.gradients(model, torch.randn(2, 5), torch.tensor([0, 1]), loss)
    with pytest.raises(NotFound, match="lack gradients in 'own'"):
        memory.topk(["head", "own"], "test", score="gradient")
    both, alone = (memory.topk(layers, "test", 4, score="gradient") for layers in ("*", "head"))
    assert both.flat_scores.tobytes() == alone.flat_scores.tobytes()


def test_a_part_of_a_layer_is_refused(recorded):
    images = recorded("images")
    for ask in (images.memory.topk, images.memory.group_sum):
        by = {"by": "sample"} if ask == images.memory.group_sum else {}
        with pytest.raises(BadInput, match=r"'conv\.0' is a part of layer 'conv'"):
            ask("conv.0", images.asked, score="gradient", **by)


class Reused(nn.Module):
    """Its table is a weight of the head as well, in a product that no layer makes."""

    def __init__(self):
        super().__init__()
        self.words, self.middle = nn.Embedding(CLASSES, 4), nn.Linear(4, 4)

    def forward(self, words):
        return nn.functional.linear(self.middle(self.words(words)).mean(1), self.words.weight)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the recorder's own
def test_layers_whose_gradients_came_from_elsewhere_too_are_refused(tmp_path):
    torch.manual_seed(0)
    model, words = Reused(), torch.randint(0, CLASSES, (8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True),
        optimizer,
        3,
        lambda _: loss(model(words), torch.zeros(8, dtype=torch.long)).sum(),
    )
    memory = dualform.open(tmp_path / "m")
    asked = memory.gradients(model, words[:2], torch.zeros(2, dtype=torch.long), loss)
    with pytest.raises(Inexact, match="The slots of layer 'words' do not hold its whole gradient from step 0 on:"):
        memory.topk("*", asked, score="gradient")
    assert memory.topk("middle", asked, score="gradient").ids.size


def test_tables_of_a_greatest_norm_stay_as_they_are(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(0, 5, (8, 2))
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", layers=["2"], quiet=True),
        optimizer,
        1,
        lambda _: loss(model(words), torch.zeros(8, dtype=torch.long)).sum(),
    )
    with torch.no_grad():
        model[0].weight.mul_(10)  # beyond the norm, as an update may leave it
    before = model[0].weight.clone()
    with pytest.warns(RuntimeWarning, match="the gradients are those at its own weights"):
        dualform.open(tmp_path / "m").gradients(model, words, torch.zeros(8, dtype=torch.long), loss)
    assert torch.equal(model[0].weight, before)


def test_a_model_that_is_frozen_by_now_has_gradients_all_the_same(mlp):
    weight = mlp.model[0].weight
    weight.requires_grad_(False)
    try:
        found = mlp.memory.gradients(mlp.model, *mlp.tests, loss)
        assert not weight.requires_grad
    finally:
        weight.requires_grad_()
    for name, own in mlp.asked.layers.items():
        assert found.layers[name].errors.tobytes() == own.errors.tobytes()


def test_the_model_is_left_as_it_was(mlp):
    mlp.model.train()
    before = {name: own.clone() for name, own in mlp.model.state_dict().items()}
    mlp.model.zero_grad()
    state = torch.get_rng_state()
    mlp.memory.gradients(mlp.model, *mlp.tests, loss)
    assert mlp.model.training
    assert all(own.grad is None for own in mlp.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(own, before[name]) for name, own in mlp.model.state_dict().items())


def gradients_of(keys, errors, examples=1):
    return LayerGradients(keys, errors, np.full(len(keys), examples - 1))


ONE = gradients_of(np.ones((1, 5)), np.ones((1, 5)))
SCORE = {"score": "gradient"}
BY = {"by": "sample", **SCORE}


@pytest.mark.parametrize(
    ("error", "said", "ask"),
    [
        (BadInput, "needs the gradients of examples as its queries", lambda m: m.group_sum("*", np.ones((1, 5)), **BY)),
        (NotFound, "no query set 'test'", lambda m: m.topk("*", "test/17", **SCORE)),
        (BadInput, "are of 5 to 5", lambda m: m.group_sum("*", ExampleGradients(1, {"0": ONE}), **BY)),
        (NotFound, "lack gradients in", lambda m: m.group_sum("2", ExampleGradients(1, {"0": ONE}), **BY)),
        (BadInput, "must map layer names to LayerGradients", lambda m: ExampleGradients(1, [ONE])),
        (BadInput, "must map layer names to LayerGradients", lambda m: ExampleGradients(1, {"0": np.ones((1, 5))})),
        (
            BadInput,
            "outside 0 to 0",
            lambda m: ExampleGradients(1, {"0": gradients_of(np.ones((1, 5)), np.ones((1, 5)), 2)}),
        ),
        (BadInput, "one row for each of the 1 keys, not 2", lambda m: gradients_of(np.ones((1, 5)), np.ones((2, 5)))),
        (BadInput, "contains NaN or infinity", lambda m: gradients_of(np.full((1, 5), np.nan), np.ones((1, 5)))),
    ],
)
def test_gradients_that_do_not_fit_are_refused(mlp, error, said, ask):
    with pytest.raises(error, match=said):
        ask(mlp.memory)


@pytest.mark.parametrize(
    ("error", "said", "method", "layer", "options"),
    [
        (BadInput, 'by cannot be used with score="gradient"', "topk", "*", {"by": "label"}),
        (BadInput, 'target cannot be used with score="gradient"', "topk", "*", {"target": 1}),
        (BadInput, "layer names a layer twice:", "group_sum", ["0", "0"], {"by": "sample"}),
        (BadInput, "by must name at least one column", "group_sum", "*", {}),
        (NotFound, "nix", "group_sum", "nix", {"by": "sample"}),
        (EmptyMask, "matches no", "group_sum", "*", {"by": "sample", "where": "label > 99"}),
    ],
)
def test_questions_that_do_not_fit_gradients_are_refused(mlp, error, said, method, layer, options):
    with pytest.raises(error, match=said):
        getattr(mlp.memory, method)(layer, mlp.asked, score="gradient", **options)


def test_a_message_about_swapped_arguments_is_short():
    said = r"count must be a whole number of at least 1, not \{'0': LayerGradients.* Pass the number"
    with pytest.raises(BadInput, match=said) as swapped:
        ExampleGradients({"0": ONE}, 1)
    assert len(str(swapped.value)) < 200


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("one number for each of", {"loss": nn.functional.cross_entropy}),
        ("has 3 examples but 2 labels", {"labels": torch.zeros(2, dtype=torch.long)}),
        ("is nan for example 1", {"loss": lambda output, _: output[:, 0] / torch.tensor([1.0, 0, 1]) * 0}),
        ("lacks every layer", {"model": nn.Linear(5, 3)}),
    ],
)
def test_losses_labels_and_models_that_do_not_fit_are_refused(mlp, said, change):
    usual = {"model": mlp.model, "inputs": mlp.tests[0], "labels": mlp.tests[1], "loss": loss}
    with pytest.raises(BadInput, match=said):
        mlp.memory.gradients(*(usual | change).values())


class Sometimes(nn.Module):
    """A second layer that only some steps run."""

    def __init__(self):
        super().__init__()
        self.always, self.seldom = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, inputs, also=True):
        found = self.always(inputs)
        return found + self.seldom(inputs) if also else found


def test_slots_that_one_layer_lacks_have_the_others_part(tmp_path):
    torch.manual_seed(0)
    model = Sometimes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True),
        optimizer,
        ((step, torch.randn(50, 8), torch.randint(0, CLASSES, (50,))) for step in range(12)),
        lambda step, inputs, labels: loss(model(inputs, step % 3 == 1), labels).mean(),
        label=lambda step, inputs, labels: labels,
    )
    with (
        dualform.open(tmp_path / "m", backend="numpy") as scan,
        dualform.open(tmp_path / "m", backend="int8") as screen,
    ):
        asked = scan.gradients(model, torch.randn(3, 8), torch.arange(3), loss)
        for where in (None, "label = 1"):
            parts = [scan.group_sum(own, asked, "slot", where, "gradient") for own in ("always", "seldom")]
            both = scan.group_sum("*", asked, "slot", where, "gradient")
            sums = np.zeros((3, 600))
            for part in parts:
                sums[:, [slot for (slot,) in part.groups]] += part.sums
            np.testing.assert_allclose(both.sums, sums[:, [slot for (slot,) in both.groups]], rtol=1e-12, atol=1e-15)
            assert len(parts[1].groups) < len(parts[0].groups) == len(both.groups)
            expected, found = (memory.topk("*", asked, 5, where, score="gradient") for memory in (scan, screen))
            assert found.ids.tobytes() == expected.ids.tobytes()
            assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
            slots = np.array([slot for (slot,) in both.groups])
            for own, one in some(zip(found.slots, both.sums, strict=True)):
                assert own.tolist() == slots[np.lexsort((slots, -one))[:5]].tolist()


def test_a_layer_without_slots_brings_nothing(tmp_path):
    writer = open_writer(tmp_path / "m", TOKENS)
    one = token_batch(np.random.default_rng(0), 0, 3)
    writer.append(one)
    writer.close()
    assert "some" not in one.layers

    def examples(*layers):
        given = {name: (np.ones((1, width), np.float32), np.ones((1, 2), np.float32)) for name, width in layers}
        return ExampleGradients(1, {name: LayerGradients(*own, np.zeros(1, np.int64)) for name, own in given.items()})

    with dualform.open(tmp_path / "m") as memory:
        both, alone = examples(("some", 3), ("every", 4)), examples(("every", 4))
        for ask in (
            lambda layers, given: [own.tolist() for own in memory.topk(layers, given, k=3, score="gradient").slots],
            lambda layers, given: memory.group_sum(layers, given, by="step", score="gradient").sums.tolist(),
        ):
            assert ask(["some", "every"], both) == ask(["every"], alone)
        with pytest.raises(EmptyMask):
            memory.topk("some", examples(("some", 3)), k=3, score="gradient")


class Deep(nn.Module):
    """Three layers, the last of them without a bias, and more samples than a screen would keep."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())
        self.head = nn.Linear(12, CLASSES, bias=False)

    def forward(self, inputs):
        return self.head(self.parts(inputs))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    torch.manual_seed(0)
    model, path = Deep(), tmp_path_factory.mktemp("gradients") / "m"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = torch.randn(300, 20)
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        ((step, torch.randint(0, 300, (100,))) for step in range(40)),
        lambda step, index: loss(model(every[index] * (1 + step % 3)), index % CLASSES).mean(),
        label=lambda step, index: index % 5,
        sample=lambda step, index: index,
    )
    return model, path


@pytest.mark.parametrize(("layers", "where"), [("*", None), ("head", "label <> 1"), (["parts.0", "head"], None)])
def test_the_screen_finds_what_all_scores_say(deep, layers, where):
    model, path = deep
    with dualform.open(path, backend="numpy") as scan, dualform.open(path, backend="int8") as screen:
        asked = scan.gradients(model, torch.randn(6, 20), torch.arange(6) % CLASSES, loss)
        expected, found = (memory.topk(layers, asked, 5, where, score="gradient") for memory in (scan, screen))
        assert found.ids.tobytes() == expected.ids.tobytes()
        assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
        if kernels.library() is not None:
            assert screen.tally.fallbacks == 0


def test_the_screen_leaves_to_the_scan_what_it_cannot_tell(case):
    last = case.memory.info().layers[-1].name
    with dualform.open(case.memory.path, backend="int8") as screen:
        expected = case.memory.group_sum(last, case.asked, by="slot", score="gradient")
        found = screen.topk(last, case.asked, 2, score="gradient")
        slots = [key[0] for key in expected.groups]
        for own, sums in some(zip(found.slots, expected.sums, strict=True)):
            assert own.tolist() == [slots[g] for g in np.lexsort((slots, -sums))[:2]]


@pytest.fixture(scope="module")
def scanned_and_screened(deep):
    _, path = deep
    with dualform.open(path, backend="numpy") as scan, dualform.open(path, backend="int8") as screen:
        yield scan, screen


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(-12, 12) | st.sampled_from([-60, 50]), min_size=4, max_size=4),
    places=st.integers(0, 3),
    rows=st.integers(1, 6),
    k=st.integers(1, 20),
)
def test_the_screen_loses_no_slot_whatever_the_rows(scanned_and_screened, seed, sizes, places, rows, k):
    """Of any sizes, some rows of zeros, and of a row's numbers only a few apart from zero."""
    rng = np.random.default_rng(seed)

    def drawn(width, size):
        found = rng.normal(size=(2 * rows, width)) * 10.0 ** (size / 2)
        found[rng.random(2 * rows) < 0.2] = 0
        if places:
            found[:, places:] = 0
        return found

    examples = np.repeat([0, 1], rows)
    layers = {
        "parts.0": LayerGradients(drawn(20, sizes[0]), drawn(16, sizes[1]), examples),
        "head": LayerGradients(drawn(12, sizes[2]), drawn(CLASSES, sizes[3]), examples),
    }
    asked = ExampleGradients(2, layers)
    expected, found = (memory.topk("*", asked, k, score="gradient") for memory in scanned_and_screened)
    assert found.ids.tobytes() == expected.ids.tobytes()
    assert found.flat_scores.tobytes() == expected.flat_scores.tobytes()
