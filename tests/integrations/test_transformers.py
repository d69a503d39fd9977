"""The mixin in the real Trainer: the training unharmed, micro-batches are steps, columns by name, weights rebuilt."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform import PreviewSet
from dualform.errors import BadInput, RecordingError
from dualform.integrations.columns import said_of
from dualform.integrations.query_sets import QuerySets

pytestmark = pytest.mark.filterwarnings("ignore")  # the package's own, of loaders and settings

WORDS, LENGTH, ROWS = 32, 8, 20


@pytest.fixture(scope="module", autouse=True)
def _offline():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}.items():
            patch.setenv(name, value)
        yield


class Texts(torch.utils.data.Dataset):
    """Every third text is padded."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        words = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(row))
        mask = torch.ones(LENGTH, dtype=torch.long)
        mask[LENGTH - 3 :] = int(row % 3 != 0)
        labels = words.masked_fill(mask == 0, -100)
        return {"input_ids": words, "attention_mask": mask, "labels": labels, "sample": row, "source": row % 2}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, tie_word_embeddings=True, **sizes))


def arguments(folder, **settings):
    from transformers import TrainingArguments

    still = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    sizes = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 1e-2}
    return TrainingArguments(output_dir=str(folder / "out"), **still | sizes | settings)


def trainer(model, folder, record=None, columns=("sample", "source"), **settings):
    from dualform.integrations.transformers import RecordingTrainer

    inputs = {name: torch.stack([Texts()[row][name] for row in (0, 1)]) for name in ("input_ids", "attention_mask")}
    return RecordingTrainer(
        model=model, args=arguments(folder, **settings), train_dataset=Texts(), eval_dataset=Texts(), record=record,
        columns=columns, dataset="texts", query_sets={"test": inputs}, query_set_labels={"test": inputs["input_ids"]},
        query_set_previews={"test": PreviewSet.texts(["the first", "the second"])}, recorder={"quiet": True},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}, 1e-5),
        ({"bf16": True, "remove_unused_columns": False, "max_grad_norm": 0.1}, 0.1),
    ],
    ids=["accumulated", "bfloat16"],
)
def test_the_training_is_unharmed_and_rebuilt(tmp_path, settings, error):
    plain, recorded = llama(), llama()
    trainer(plain, tmp_path, **settings).train()
    training = trainer(recorded, tmp_path, tmp_path / "m", **settings)
    training.train()
    for name, value in plain.state_dict().items():
        assert torch.equal(recorded.state_dict()[name], value), name
    with dualform.open(tmp_path / "m") as memory:
        info = memory.info()
        updates = memory.sql("SELECT count(*) AS n FROM steps WHERE updated").arrays["n"].tolist()
        assert (info.steps, updates) == ((10, [6]) if "gradient_accumulation_steps" in settings else (10, [10]))
        assert {"model.embed_tokens", "lm_head", "model.layers.0.self_attn.q_proj"} <= {one.name for one in info.layers}
        slots = memory.sql("SELECT sample, source, position, dataset FROM slots").arrays
        assert np.array_equal(slots["source"], slots["sample"] % 2)
        padded = slots["sample"] % 3 == 0
        assert slots["position"][padded].max() == LENGTH - 4
        assert slots["position"][~padded].max() == LENGTH - 1
        assert np.array_equal(np.unique(slots["sample"]), np.arange(ROWS))
        assert all(one.reconstruction_error < error for one in memory.verify().values())
        assert len(memory.query_set("test", "lm_head").queries) == 2 * LENGTH
        words = torch.stack([Texts()[row]["input_ids"] for row in (0, 1)])
        assert memory.query_set("test").labels.tolist() == words.flatten().tolist()
        assert memory.previews([1], query_set="test").texts == ("the second",)
    assert training.evaluate()["eval_loss"] > 0


def test_a_query_set_that_cannot_be_taken_costs_nothing_of_the_memory(tmp_path):
    training = trainer(llama(), tmp_path, tmp_path / "m", max_steps=2)
    training._query_sets = QuerySets({"test": {"input_ids": torch.full((1, 3), WORDS)}})
    with pytest.raises(IndexError):
        training.train()
    with dualform.open(tmp_path / "m") as memory:
        assert (memory.info().steps, memory.info().cut_off) == (2, "")


def test_the_label_of_a_token_is_the_next_one_and_a_column_that_the_model_takes_goes_on_to_it(tmp_path):
    from dualform.integrations.transformers import next_token

    columns = {"sample": "sample", "label": next_token, "own": "labels"}
    training = trainer(llama(), tmp_path, tmp_path / "m", columns=columns, max_steps=2)
    training.train()
    with dualform.open(tmp_path / "m") as memory:
        slots = memory.sql("SELECT sample, position, label, own FROM slots").records()
    assert len({slot["sample"] for slot in slots}) == 8
    for slot in slots:
        labels = [*Texts()[slot["sample"]]["labels"].tolist(), -100]
        behind = labels[slot["position"] + 1]
        assert slot["label"] == (None if behind == -100 else behind)
        assert slot["own"] == labels[slot["position"]]


def test_labels_that_are_no_tokens_are_refused(tmp_path):
    from dualform.integrations.transformers import next_token

    for labels in (torch.zeros(4, dtype=torch.long), torch.zeros(4, 3)):
        with pytest.raises(BadInput, match=r"labels must be integers \[B, L\] for next_token"):
            next_token({"labels": labels})
    said = "The first batch lacks what next_token takes, from which column 'label' is taken."
    with pytest.raises(BadInput, match=said):
        said_of({"input_ids": torch.zeros(4, 3)}, {"label": next_token}, first=True)
    assert said_of({}, {"label": next_token}, first=False) == {}


def test_a_column_that_no_batch_has_is_refused_at_once(tmp_path):
    with pytest.raises(BadInput, match="The first batch has no 'person', from which column 'person' is taken"):
        trainer(llama(), tmp_path, tmp_path / "m", columns=["person"]).train()


def test_it_ends_with_the_last_weights_though_the_best_ones_are_put_in_place(tmp_path):
    best = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    model = llama()
    training = trainer(model, tmp_path, tmp_path / "m", **best, metric_for_best_model="loss", greater_is_better=True)
    with pytest.warns(RuntimeWarning, match=r"^load_best_model_at_end changed the model's weights after the last step"):
        training.train()
    with dualform.open(tmp_path / "m") as memory:
        assert all(status.exact for status in memory.weights().statuses.values())
        final = memory.weights()["lm_head.weight"]
    assert not torch.allclose(model.lm_head.weight, final, atol=1e-4)


def test_copies_of_a_model_in_threads_are_refused(tmp_path):
    training = trainer(llama(), tmp_path, tmp_path / "m")
    with pytest.raises(
        RecordingError, match=r"The Trainer has put the model into nn\.DataParallel, which cannot be recorded\."
    ):
        training.training_step(nn.DataParallel(training.model), {})


def test_a_training_that_goes_on_from_a_checkpoint_goes_on_in_its_memory(tmp_path):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_epoch_end(self, args, state, control, **named):
            control.should_training_stop = True

    for checkpoint in (None, str(tmp_path / "out" / "checkpoint-5")):
        model = llama()
        training = trainer(model, tmp_path, tmp_path / "m", save_strategy="epoch")
        training._recorder_arguments["resume"] = True
        training._query_sets = QuerySets()
        if checkpoint is None:
            training.add_callback(Stop())
        training.train(resume_from_checkpoint=checkpoint)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 10
        assert all(one.exact for one in memory.verify().values())
        weights = memory.weights()
    torch.testing.assert_close(weights["lm_head.weight"], model.lm_head.weight.detach(), rtol=1e-5, atol=1e-6)


class TooMuch(nn.Module):
    """Has no memory left for the n-th batch."""

    def __init__(self, failing):
        super().__init__()
        self.body, self.left = nn.Linear(LENGTH, 3), failing

    def forward(self, input_ids, labels=None, **rest):
        if self.training:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("CUDA out of memory. Tried to allocate")
        told = self.body(input_ids / WORDS)
        return {"loss": told.square().mean(), "logits": told}


@pytest.mark.parametrize(("failing", "folders"), [(1, {"m": 7}), (4, {"m": 3, "m-2": 7})])
def test_a_batch_size_that_is_found_by_trying(tmp_path, monkeypatch, failing, folders):
    memory = pytest.importorskip("accelerate.utils.memory", reason="accelerate, which looks for it, is not here")
    monkeypatch.setattr(memory, "gc", SimpleNamespace(collect=lambda: 0))  # of all that is there, at each try
    torch.manual_seed(0)
    model = TooMuch(failing)
    training = trainer(model, tmp_path, tmp_path / "m", num_train_epochs=1, auto_find_batch_size=True)
    training._query_sets = QuerySets()
    training.train()
    for folder in folders:
        with dualform.open(tmp_path / folder) as memory:
            assert (memory.info().steps, bool(memory.info().cut_off)) == (folders[folder], folder != [*folders][-1])
            assert all(one.exact for one in memory.verify().values())
            weights = memory.weights()
    assert {folder.name for folder in tmp_path.glob("m*")} == folders.keys()
    torch.testing.assert_close(weights["body.weight"], model.body.weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_trainer_that_trains_again_is_recorded_beside(tmp_path):
    training = trainer(llama(), tmp_path, tmp_path / "m", max_steps=2)
    training.train()
    with pytest.warns(RuntimeWarning, match=r"trains again: from here on it is recorded in .*m-2"):
        training.train()
    with dualform.open(tmp_path / "m-2") as memory:
        assert memory.info().steps == 2
        assert all(one.exact for one in memory.verify().values())


def test_an_estimate_of_what_a_trainer_trains(tmp_path):
    def train(record):
        training = trainer(llama(), tmp_path, tmp_path / "m")
        training._make = record
        training.train()

    told = dualform.estimate(train, 100, samples=ROWS, tried=4)
    assert (told.tried, told.stored.layers.keys() >= {"lm_head"}) == (4, True)
    assert not (tmp_path / "m").exists()
