"""Hooks and patches of the user's own on layers that are recorded, and what happens if a hook of the recorder fails."""

import inspect
import random
import re
import sys
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules import module as global_hooks
from torch.utils.checkpoint import checkpoint

import dualform
from dualform import Recorder
from dualform.errors import RecordingError
from dualform.record.hooks import OPEN
from dualform.record.slots.step_record import Collector
from dualform.record.taps import autograd
from dualform.record.taps.matrix import BY_HAND
from dualform.record.taps.watcher import _AROUND
from dualform.store.writing.writer import Writer
from tests.reliability import report, soaking
from tests.trainings import learn

from .listed import ListSink, batches, opened_on, small_net, train


def tenfold(_module, _args, output):
    return 10 * output


def shifted(_module, args):
    return (args[0] * 3 + 1,)


HOOKS = {
    "looks at all outputs": lambda layer: global_hooks.register_module_forward_hook(lambda *_: None),
    "changes the output": lambda layer: layer.register_forward_hook(tenfold),
    "changes the output, first": lambda layer: layer.register_forward_hook(tenfold, prepend=True),
    "changes the input": lambda layer: layer.register_forward_pre_hook(shifted),
    "changes the input, first": lambda layer: layer.register_forward_pre_hook(shifted, prepend=True),
    "writes over the output": lambda layer: layer.register_forward_hook(lambda m, a, output: output.mul_(10)),
    "changes all inputs": lambda layer: global_hooks.register_module_forward_pre_hook(
        lambda module, args: shifted(module, args) if module is layer else None
    ),
    "changes the gradient": lambda layer: layer.register_full_backward_pre_hook(lambda m, grads: (10 * grads[0],)),
}


@pytest.mark.parametrize(("kind", "when"), [*zip(HOOKS, cycle(["before", "while"]), strict=False)])
def test_a_users_hook_is_no_part_of_the_layer(tmp_path, kind, when):
    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with ExitStack() as stack:
        if when == "before":
            stack.callback(HOOKS[kind](model[2]).remove)
        stack.enter_context(opened.recorder)
        train(opened, model, batches(2))
        if when == "while":
            stack.callback(HOOKS[kind](model[2]).remove)
        for x, y in batches(3):
            with opened.recorder.step(label=y):
                opened.optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                gradients = {name: own.grad.double().numpy().copy() for name, own in model.named_parameters()}
                opened.optimizer.step()
    for layer in ("0", "2", "4"):
        _, rows = opened.sink.parts(layer)[-1]
        own = rows.values.astype(np.float64).T @ rows.keys.astype(np.float64)
        np.testing.assert_allclose(own, gradients[f"{layer}.weight"], rtol=1e-4, atol=1e-7)
    assert opened.sink.defects == []


def of_all_modules(layer):
    return global_hooks.register_module_forward_hook(lambda module, a, out: 10 * out if module is layer else None)


def of_all_modules_in_place(layer):
    return global_hooks.register_module_forward_hook(lambda module, a, out: out.mul_(10) if module is layer else None)


def with_another_forward(owner, name, forward):
    """A patch that goes as a hook does."""
    patch = pytest.MonkeyPatch()
    patch.setattr(owner, name, forward, raising=False)
    return Removable(patch.undo)


class Removable:
    def __init__(self, remove):
        self.remove = remove


def patched_forward(module, x):
    return 10 * nn.functional.linear(x, module.weight, module.bias)


ALTERED = {
    "a hook of all modules": (
        of_all_modules,
        r"a hook of all modules changed its output: tests\.record\.test_hooks\.of_all_modules\.<locals>\.<lambda>",
    ),
    "a hook of all modules that writes": (of_all_modules_in_place, "a hook of all modules changed its output: "),
    "the class's forward": (
        lambda layer: with_another_forward(nn.Linear, "forward", patched_forward),
        r"its forward was replaced by tests\.record\.test_hooks\.patched_forward while it was recorded",
    ),
    "its own forward": (
        lambda layer: with_another_forward(layer, "forward", lambda x: patched_forward(layer, x)),
        r"its forward was replaced by tests\.record\.test_hooks\.<lambda>\.<locals>\.<lambda>",
    ),
    "a backward hook of the old kind": (
        lambda layer: layer.register_backward_hook(lambda *_: None),
        "it was given a hook of register_backward_hook",
    ),
}


@pytest.mark.parametrize("kind", ALTERED)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_what_alters_an_output_before_the_recorder_sees_it_is_named(tmp_path, kind):
    alter, why = ALTERED[kind]

    def run(path=None):
        model = small_net()
        opened = opened_on(model, path or tmp_path / "never")
        with opened.recorder if path else ExitStack():
            for number, (x, y) in enumerate(batches(4)):
                altered = alter(model[2]) if number in (1, 2) else None
                with opened.recorder.step(label=y) if path else ExitStack():
                    learn(opened.optimizer, cross_entropy(model(x), y))
                if altered is not None:
                    altered.remove()
        return model, opened

    model, opened = run(tmp_path / "m")
    plain, _ = run()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    reasons = {layer: (step, reason) for layer, step, reason in reversed(opened.sink.defects)}
    step, reason = reasons["2"]
    assert step <= 1
    assert re.search(why, reason), reason
    assert [step for step, _ in opened.sink.parts("2")] == [0, 3]
    assert len(opened.sink.parts("4")) == 4 - 2 * ("class" in kind)


@pytest.mark.parametrize("kind", ALTERED)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_what_alters_an_output_from_the_start_is_named(tmp_path, kind):
    """By name as it is skipped, if that can be seen; at its first call if not."""
    alter, why = ALTERED[kind]
    model = small_net()
    with ExitStack() as stack:
        stack.callback(alter(model[2]).remove)
        if kind == "the class's forward":
            with pytest.raises(RecordingError, match=r"0: Linear\.forward was replaced by .*\.patched_forward"):
                opened_on(model, tmp_path / "m")
            return
        opened = opened_on(model, tmp_path / "m")
        stack.enter_context(opened.recorder)
        if "all modules" in kind:
            with pytest.raises(RecordingError, match=f"^layer '2': {why}"):
                train(opened, model, batches(1))
        else:
            train(opened, model, batches(1))
            assert opened.recorder.skipped["2"].startswith(("Linear has a forward of its own", "it has a hook of"))


class Zoo(nn.Module):
    """Every way in which the recorder hangs on a model that is not compiled."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.bag = nn.Embedding(7, 4), nn.EmbeddingBag(7, 4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lstm, self.gru = nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
        self.conv, self.again = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 4)
        self.own, self.named = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.tied, self.head = nn.Linear(4, 7), nn.Linear(4, 3)
        self.tied.weight = self.embed.weight

    def forward(self, x):
        embedded = self.embed(x)
        h = embedded + self.attend(embedded, embedded, embedded)[0]
        h = h + self.lstm(h)[0] + self.gru(h)[0] + self.conv(h.transpose(1, 2)).transpose(1, 2)
        h = h + checkpoint(lambda h: torch.tanh(self.again(h)), h, use_reentrant=False)
        h = h @ self.own + dualform.tap(h, self.named, "named") + self.bag(x)[:, None]
        return self.head(h), self.tied(h)


STEPS, LATER, SEED = 4, 2, 35

BOUNDARY = (
    "discovery/followed_rows.py:_Mode.__torch_function__",
    "discovery/found_layers.py:FoundLayers.by_hand",
    "setup/optimizers.py:around_each_update.<locals>.before",
    "setup/optimizers.py:around_each_update.<locals>.before.<locals>.closed",
    "setup/optimizers.py:around_each_update.<locals>.before.<locals>.<dictcomp>",
    "setup/optimizers.py:around_each_update.<locals>.after",
    "taps/autograd.py:_Saved.forward",
    "taps/autograd.py:save",
    "taps/autograd.py:Part.allows",
    "taps/autograd.py:Part.fill",
    "taps/autograd.py:Part.note",
    "taps/autograd.py:Part.note.<locals>.<listcomp>",
    "taps/autograd.py:part_that_runs",
    "taps/autograd.py:part_that_runs.<locals>.<dictcomp>",
    "taps/autograd.py:runs_again",
    "taps/recurrent.py:TappedGRU.passed",
    "taps/recurrent.py:TappedGRU.passes_by",
    "taps/autograd.py:saving",
    "taps/autograd.py:ModelHook.__call__",
    "taps/autograd.py:_Identity.forward",
    "taps/autograd.py:_Identity.forward.<locals>.<listcomp>",
    "taps/autograd.py:_Identity.forward.<locals>.<genexpr>",
    "taps/autograd.py:_Identity.backward",
    "taps/autograd.py:Report.saved",
    "taps/autograd.py:Report.__call__",
    "taps/autograd.py:watched",
    "taps/tap.py:_Before.__call__",
    "taps/tap.py:_Hook.__call__",
    "taps/matrix.py:tap",
    "taps/watcher.py:_overridden",
    "taps/watcher.py:_overridden.<locals>.<genexpr>",
    "taps/tap.py:Tap.passed",
    "taps/tap.py:Tap._passed",
    "taps/tap.py:Tap.passes_by",
    "taps/watcher.py:_Around.enter",
    "taps/watcher.py:_Around.enter.<locals>.<genexpr>",
    "taps/watcher.py:_Around.leave",
    "taps/watcher.py:_Around.leave.<locals>.<genexpr>",
    "taps/watcher.py:_Enter.listener",
    "taps/watcher.py:_Enter.__call__",
    "taps/watcher.py:_Leave.__call__",
    "taps/watcher.py:_Mode.__torch_function__",
    "taps/watcher.py:_seen",
    "taps/watcher.py:_seen.<locals>.<genexpr>",
    "taps/watcher.py:_watched_linear",
    "taps/watcher.py:hidden",
)

"""What catches the errors of all that it calls, and has nothing of its own that may fail."""


def hooked(model, optimizer):
    """What hangs on them, on all modules, and in the process."""
    parts = [
        getattr(module, name)
        for module in (*model.modules(), global_hooks)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks")
        if hasattr(module, name)
    ]
    parts += [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, BY_HAND, autograd._JOINED]
    return [*(own for part in parts for own in part), *_AROUND.entered, *(own for own in OPEN if own is model)]


class Tracing:
    """While it is `on`: counts the calls of our functions, and of torch's that register hooks, or raises in one."""

    ROOT = str(Path(dualform.__file__).parent)
    TORCH = str(Path(torch.__file__).parent)

    def __init__(self, raises=None, nth=1):
        self.on, self.raises, self.nth, self.called, self.raised = False, raises, nth, Counter(), False

    def place(self, code):
        file, name = code.co_filename, code.co_qualname
        if file.startswith(self.ROOT) and code.co_flags & inspect.CO_OPTIMIZED:
            return f"{file[len(self.ROOT) + 1 :].removeprefix('record/')}:{name}"
        return name if file.startswith(self.TORCH) and code.co_name.startswith("register_") else None

    def __call__(self, frame, event, _):
        place = self.place(frame.f_code) if self.on and event == "call" else None
        if place is None:
            return
        self.called[place] += 1
        if place == self.raises and self.called[place] == self.nth:
            self.on, self.raised = False, True
            raise ValueError(f"raised in {place}")

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)


class Training:
    """A zoo that is trained, with hooks of its own beside the recorder's. Of a step or of entering, a trace is on."""

    def __init__(self, tracing=None, at=None):
        self.model = Zoo()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.tracing, self.at = tracing, at
        self.batches = torch.randint(7, (STEPS, 3, 5), generator=torch.Generator().manual_seed(3))

    @contextmanager
    def traced(self, now):
        if self.tracing is None:
            yield
            return
        self.tracing.on = now == self.at
        try:
            yield
        finally:
            self.tracing.on = False

    def step(self, number):
        x = self.batches[number]
        self.optimizer.zero_grad()
        logits, words = self.model(x)
        loss = logits.square().mean() + cross_entropy(words.flatten(0, 1), x.flatten())
        loss.backward()
        self.optimizer.step(*[lambda: loss] * (number % 2))

    def run(self):
        for number in range(STEPS):
            self.step(number)
        return self

    def record(self, path, sink=ListSink, **options):
        recorder = Recorder(self.model, self.optimizer, path, sink=sink, quiet=True, **options)
        with ExitStack() as stack:
            with self.traced("entering"):
                stack.enter_context(recorder)
            for register in (self.optimizer.register_step_pre_hook, self.optimizer.register_step_post_hook):
                stack.callback(register(lambda *_: None).remove)
            stack.callback(self.model.head.register_forward_hook(lambda *_: None).remove)
            for number in range(STEPS):
                with recorder.step(sample=np.arange(3)), self.traced(number):
                    self.step(number)
        return recorder

    @property
    def weights(self):
        return [own.detach().clone() for own in self.model.parameters()]


@pytest.fixture(scope="module")
def unrecorded():
    return Training().run().weights


def halved(_module, _args, output):
    return tuple(map(partial(halved, None, None), output)) if isinstance(output, tuple) else 0.5 * output


def test_a_users_hook_is_no_part_of_a_layer_of_any_kind(tmp_path):
    training = Training()
    for module in training.model.children():
        module.register_forward_hook(halved)
    sinks = []
    training.record(tmp_path / "m", sink=lambda header: sinks.append(ListSink(header)) or sinks[0])
    factors = {own.parameter: own.factor for log in sinks[0].logs.values() for own in log.factors}
    assert len(factors) > 20
    assert list(factors.values()) == pytest.approx([1.0] * len(factors), rel=1e-3)
    assert sinks[0].defects == []


def places_of(path, at):
    """What is called then in a training that goes well, and how often."""
    Training().record(path.with_name(f"before {at}"))  # what is loaded and kept once
    with Tracing() as tracing:
        Training(tracing, at).record(path)
    return tracing.called


@pytest.mark.soak
@pytest.mark.parametrize(("on_error", "at"), [("stop_recording", 0), ("raise", LATER), ("warn", LATER + 1)])
def test_what_fails_in_a_hook_leaves_it_as_on_error_says(tmp_path, unrecorded, on_error, at):
    every = sorted(place for place in places_of(tmp_path / "whole", at) if place not in BOUNDARY)
    every = [place for place in every if not place.startswith("register")]
    drawn = every if soaking() else random.Random(SEED + at).sample(every, 5)
    for number, place in enumerate(drawn):
        path, caught = tmp_path / f"{number}", None
        with Tracing(place) as tracing, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            training = Training(tracing, at)
            try:
                recorder = training.record(path, on_error=on_error)
            except RecordingError as error:
                caught = error
        assert tracing.raised, place
        assert hooked(training.model, training.optimizer) == [], place
        # In a rule for rows it only costs the rows.
        said = [str(own.message) for own in told if not str(own.message).startswith("the rows of layer")]
        if caught is not None:
            assert at == 0 or on_error == "raise", place
            assert f"ValueError: raised in {place}" in str(caught), place
            assert said == []
            continue
        assert all(map(torch.equal, unrecorded, training.weights)), place
        if said:
            assert (on_error != "raise", at > 0) == (True, True), place
            assert [own.partition(" steps: ")[0] for own in said] == [f"recording stopped after {at}"], place
            assert f"ValueError: raised in {place}" in said[0], place
        else:  # an update rule, which may be the user's own, only costs exactness
            assert recorder.steps == STEPS, place
    report(
        f"an error raised in a function that the recorder's hooks call, at step {at} with on_error={on_error!r}",
        seed=SEED + at,
        count=len(drawn),
        outcome="raised as a RecordingError" if at == 0 or on_error == "raise" else "the same weights, bit for bit",
    )


@pytest.mark.soak
def test_a_recorder_that_cannot_be_entered_leaves_nothing(tmp_path, unrecorded):
    counts = places_of(tmp_path / "whole", "entering")
    assert sum(place.startswith("Module.register_") for place in counts) == 2
    every = sorted(counts.items())
    drawn = [own for own in every if "register_" in own[0]] + random.Random(SEED).sample(every, 12)
    for number, (place, count) in enumerate(every if soaking() else drawn):
        for nth in {1, count} if place.startswith(("Module", "Optimizer")) else {1}:
            training = Training(Tracing(place, nth), "entering")
            # What fails as an update rule is read is taken for a reason not to rebuild weights.
            with training.tracing as tracing, suppress(ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                training.record(tmp_path / f"{number} {nth}")
            assert tracing.raised, place
            assert hooked(training.model, training.optimizer) == [], place
    raised = Training(Tracing("discovery/found_layers.py:FoundLayers.attach"), "entering")
    with raised.tracing, pytest.raises(ValueError, match=r"^raised in "):
        raised.record(tmp_path / "m")
    raised.tracing = None
    assert raised.record(tmp_path / "m").steps == STEPS  # the same model, again
    assert all(map(torch.equal, unrecorded, raised.weights))


def test_a_failure_in_a_hook_leaves_a_memory_of_the_steps_before(tmp_path):
    with (
        Tracing("slots/step_record.py:Collector.received") as tracing,
        pytest.warns(RuntimeWarning, match="^recording stopped"),
    ):
        Training(tracing, LATER).record(tmp_path / "m", sink=Writer, on_error="stop_recording")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == LATER
        assert {layer: own.status.name for layer, own in memory.verify().items() if own.status.name != "exact"} == {}


def test_out_of_memory_is_raised_as_it_is(tmp_path, monkeypatch):
    """Those who try again with a smaller batch know it by its type and its words."""

    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    model = small_net()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        train(opened, model, batches(1))
        monkeypatch.setattr(Collector, "received", full)
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory\.$"):
            train(opened, model, batches(1))
