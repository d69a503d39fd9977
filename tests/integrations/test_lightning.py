"""The callback in the real trainer: the training unharmed, every batch a step, and the weights rebuilt."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dualform
from dualform.errors import BadInput

pytestmark = pytest.mark.filterwarnings("ignore")  # the package's own, of loaders, accelerators and loggers

ROWS = 70


@pytest.fixture(scope="module")
def lightning():
    import pytorch_lightning

    return pytorch_lightning


def network(lightning, skipped=()):
    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))

        def on_train_batch_start(self, batch, number):
            return -1 if number in skipped else None  # which leaves out the rest of the epoch, too

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.body(batch[0]).float(), batch[1])

        def validation_step(self, batch, number):
            self.body(batch[0])

        def forward(self, x):
            return self.body(x)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(1)
    return Network()


def loader():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 12, generator=generator)
    data = TensorDataset(x, x[:, :4].argmax(1), torch.arange(ROWS))
    return DataLoader(data, batch_size=8, shuffle=True, generator=generator)


def fit(lightning, model, callbacks=(), **settings):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings = {"max_epochs": 2, **dict.fromkeys(quiet, False)} | settings
    trainer = lightning.Trainer(accelerator="cpu", devices=1, callbacks=list(callbacks), **settings)
    trainer.fit(model, loader(), DataLoader(TensorDataset(torch.ones(2, 12)), batch_size=2))
    return trainer


def callback(path, **settings):
    from dualform.integrations.lightning import RecordCallback

    return RecordCallback(path, columns={"label": 1, "sample": 2}, quiet=True, **settings)


@pytest.mark.parametrize(
    ("settings", "skipped", "error"),
    [
        ({"accumulate_grad_batches": 4, "gradient_clip_val": 0.3}, (), 1e-5),
        ({"precision": "bf16-mixed"}, (2,), 1e-2),
    ],
    ids=["accumulated and clipped", "bfloat16, a batch skipped"],
)
def test_the_training_is_unharmed_and_rebuilt(lightning, tmp_path, settings, skipped, error):
    plain, recorded = network(lightning, skipped), network(lightning, skipped)
    fit(lightning, plain, **settings)
    query_sets = {"test": torch.eye(12)[:3]}
    preview_set = dualform.PreviewSet.texts(["a", "b", "c"])
    of_query_sets = {"query_set_labels": {"test": [2, 0, 3]}, "query_set_previews": {"test": preview_set}}
    recording = callback(tmp_path / "m", dataset="mine", query_sets=query_sets, **of_query_sets)
    fit(lightning, recorded, [recording], **settings)
    for name, value in plain.state_dict().items():
        assert torch.equal(recorded.state_dict()[name], value), name
    batches = 2 * min([9, *skipped])
    with dualform.open(tmp_path / "m") as memory:
        info = memory.info()
        assert ([layer.name for layer in info.layers], info.steps) == (["body.0", "body.2"], batches)
        assert not info.recording
        slots = memory.sql("SELECT step, dataset, label, sample FROM slots ORDER BY slot").arrays
        assert set(slots["dataset"]) == {"mine"}
        labels = loader().dataset.tensors[1].numpy()
        assert slots["label"].tolist() == labels[slots["sample"]].tolist()
        if not skipped:
            assert sorted(slots["sample"].tolist()) == sorted([*range(ROWS)] * 2)
            assert memory.sql("SELECT count(*) AS n FROM steps WHERE updated").arrays["n"].tolist() == [6]
        assert all(one.reconstruction_error < error for one in memory.verify().values())
        assert memory.query_set("test").outputs.shape == (3, 4)
        assert memory.query_set("test").labels.tolist() == [2, 0, 3]
        assert memory.previews([2, 0], query_set="test").texts == ("c", "a")


def test_a_column_that_no_batch_has_is_refused_at_once(lightning, tmp_path):
    wrong = callback(tmp_path / "m")
    wrong._columns = {"sample": 7}
    with pytest.raises(BadInput, match="The first batch has no 7, from which column 'sample' is taken"):
        fit(lightning, network(lightning), [wrong])


def test_a_training_that_fails_leaves_what_was_recorded(lightning, tmp_path):
    class Failing(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            if number == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(lightning, network(lightning), [callback(tmp_path / "m"), Failing()])
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 4
        assert memory.info().cut_off


def test_a_checkpoint_is_never_ahead_of_the_memory(lightning, tmp_path):
    seen = []

    class Look(lightning.Callback):
        def on_save_checkpoint(self, trainer, module, checkpoint):
            with dualform.open(tmp_path / "m") as memory:
                seen.append((memory.info().steps, trainer.global_step))

    saving = lightning.callbacks.ModelCheckpoint(tmp_path / "c", every_n_train_steps=3, save_top_k=-1)
    fit(
        lightning,
        network(lightning),
        [callback(tmp_path / "m"), Look(), saving],
        max_epochs=1,
        enable_checkpointing=True,
    )
    assert seen[:3] == [(3, 3), (6, 6), (9, 9)]


def test_a_training_that_goes_on_from_a_checkpoint_goes_on_in_its_memory(lightning, tmp_path):
    def part(epochs, checkpoint=None):
        saving = lightning.callbacks.ModelCheckpoint(tmp_path / "c", save_last=True)
        quiet = ("logger", "enable_progress_bar", "enable_model_summary")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs,
            callbacks=[callback(tmp_path / "m", resume=True), saving], **dict.fromkeys(quiet, False),
        )  # fmt: skip
        model = network(lightning)
        trainer.fit(model, loader(), ckpt_path=checkpoint)
        return model

    part(1)
    model = part(2, tmp_path / "c" / "last.ckpt")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 18
        assert all(one.exact for one in memory.verify().values())
        weights = memory.weights()
    torch.testing.assert_close(weights["body.0.weight"], model.body[0].weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "settings"),
    [("WeightAveraging", {}), ("StochasticWeightAveraging", {"swa_lrs": 0.005, "swa_epoch_start": 1})],
)
def test_averages_that_take_the_weights_place_at_the_end_come_after_the_record(lightning, tmp_path, make, settings):
    averaging = getattr(lightning.callbacks, make)(**settings)
    model = network(lightning)
    with pytest.warns(RuntimeWarning) as told:
        fit(lightning, model, [averaging, callback(tmp_path / "m")], max_epochs=4)
    assert [str(one.message) for one in told if "after the last step" in str(one.message)] == [
        f"{make} changed the model's weights after the last step. The memory in {tmp_path / 'm'} ends with the weights "
        "of that step, so memory.weights() differs from the model that you have now."
    ]
    with dualform.open(tmp_path / "m") as memory:
        assert all(one.exact for one in memory.verify().values())
        assert not torch.allclose(memory.weights()["body.2.weight"], model.body[2].weight, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["value", "norm"])
def test_clipping_by_value_is_named_before_the_training_and_in_its_status(lightning, tmp_path, algorithm):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        settings = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": algorithm}
        fit(lightning, network(lightning), [callback(tmp_path / "m")], **settings)
    said = [str(one.message) for one in told]
    assert any(own.startswith('gradient_clip_algorithm="value" edits single entries') for own in said) == (
        algorithm == "value"
    )
    assert not any("after the last step" in own for own in said)
    with dualform.open(tmp_path / "m") as memory:
        for reconstruction in memory.verify().values():
            assert reconstruction.exact == (algorithm == "norm")
            assert ("it looks clipped by value" in reconstruction.reason) == (algorithm == "value")


def test_what_fabric_sets_up_is_recorded_under_the_names_of_the_model(tmp_path):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))
    wrapped, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    x, y, _ = loader().dataset.tensors
    with dualform.Recorder(wrapped, optimizer, tmp_path / "m", quiet=True) as recorder:
        for start in range(0, ROWS, 10):
            with recorder.step(label=y[start : start + 10]):
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(wrapped(x[start : start + 10]), y[start : start + 10]))
                optimizer.step()
    with dualform.open(tmp_path / "m") as memory:
        reconstructions = memory.verify()
        assert [*reconstructions] == ["0", "2"]
        assert all(own.exact for own in reconstructions.values()), reconstructions
        applied = memory.weights()
    assert all(torch.allclose(applied[name], own, atol=1e-4) for name, own in model.state_dict().items())


def adversaries(lightning, shared, rounds=1):
    """`shared`: the generator runs once a batch, before the discriminator's update; `rounds` of those a batch."""

    class Adversaries(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.make, self.tell = nn.Linear(4, 12), nn.Linear(12, 1)

        def training_step(self, batch, number):
            makes, tells = self.optimizers()
            noise = torch.ones(len(batch[0]), 4) * batch[2][:, None] / ROWS
            made = self.make(noise)
            for _ in range(rounds):
                told = nn.functional.softplus(self.tell(made.detach())).mean()
                told = told + nn.functional.softplus(-self.tell(batch[0])).mean()
                self.step(tells, told)
            self.step(makes, nn.functional.softplus(-self.tell(made if shared else self.make(noise))).mean())

        def step(self, optimizer, loss):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def configure_optimizers(self):
            make, tell = ([*part.parameters()] for part in (self.make, self.tell))
            return [torch.optim.Adam(make, 1e-2), torch.optim.SGD(tell, 0.1, momentum=0.5)]

    torch.manual_seed(2)
    return Adversaries()


@pytest.mark.parametrize(("shared", "rounds"), [(False, 1), (True, 2)])
def test_optimizers_that_update_in_turn(lightning, tmp_path, shared, rounds):
    plain, recorded = adversaries(lightning, shared, rounds), adversaries(lightning, shared, rounds)
    fit(lightning, plain, max_epochs=1)
    fit(lightning, recorded, [callback(tmp_path / "m")], max_epochs=1)
    assert all(torch.equal(recorded.state_dict()[name], own) for name, own in plain.state_dict().items())
    with dualform.open(tmp_path / "m") as memory:
        info = memory.info()
        assert info.steps == 9 * (1 + rounds)
        assert all(one.exact and one.reconstruction_error < 1e-5 for one in memory.verify().values())
        made = memory.sql("SELECT sample FROM slots WHERE step % 2 = 1 ORDER BY slot") if rounds == 1 else None
        counts = {layer.name: layer.slots for layer in info.layers}
    assert counts == {"tell": ROWS * (2 * rounds + 1), "make": ROWS}
    if made is not None:
        assert sorted({*made.arrays["sample"].tolist()}) == [*range(ROWS)]


def test_a_trainer_that_trains_again_is_recorded_beside(lightning, tmp_path):
    (tmp_path / "m-2").mkdir()
    recording, model = callback(tmp_path / "m"), network(lightning)
    fit(lightning, model, [recording], max_epochs=1)
    with pytest.warns(RuntimeWarning, match=r"trains again: from here on it is recorded in .*m-3"):
        fit(lightning, model, [recording], max_epochs=1)
    assert recording.recorder.path == tmp_path / "m-3"
    for folder in ("m", "m-3"):
        with dualform.open(tmp_path / folder) as memory:
            assert memory.info().steps == 9
            assert all(one.exact for one in memory.verify().values())


def test_an_estimate_of_what_a_trainer_trains(lightning, tmp_path):
    def train(record):
        fit(lightning, network(lightning), [callback(tmp_path / "m", make=record)], max_epochs=2)

    told = dualform.estimate(train, 100, samples=ROWS, tried=4)
    assert (told.tried, told.stored.slots) == (4, {"sample": 800})
    assert not (tmp_path / "m").exists()
