"""The training itself: the Hugging Face Trainer, as a user would set it up, and three lines that record it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualform.extras import missing_package
from dualform_studies.networks.gpt2.recipe import Recipe
from dualform_studies.networks.gpt2.text import Fables, TrainingPassages

COLUMNS = {"sample": "passage", "place": "place", "fable": "fable", "label": "next"}
DATASET, QUERY_SET = "aesop", "test"


def build_network(recipe: Recipe, vocabulary: int, seed: int) -> Any:
    """A GPT2LMHeadModel in Transformers' own initialisation. Raises MissingPackage where that is not installed."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise missing_package(error) or error from None
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=recipe.length, n_embd=recipe.width, n_layer=recipe.blocks,
        n_head=recipe.heads, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def train(fables: Fables, recipe: Recipe, seed: int, out: Path) -> tuple[Any, float]:
    """The trained network, whose memory is in `out`; and the seconds that the training took."""
    try:
        from transformers import TrainingArguments
    except ImportError as error:
        raise missing_package(error) or error from None
    from dualform.integrations.transformers import RecordingTrainer

    network, start = build_network(recipe, fables.vocabulary, seed), perf_counter()
    with TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch, max_steps=recipe.steps, per_device_train_batch_size=recipe.batch,
            learning_rate=recipe.lr, weight_decay=recipe.weight_decay, max_grad_norm=recipe.clip,
            warmup_steps=round(recipe.warmup * recipe.steps), lr_scheduler_type="cosine", bf16=True,
            use_cpu=not torch.cuda.is_available(), seed=seed, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        test = fables.passages(fables.test)
        trainer: Any = RecordingTrainer(
            model=network, args=arguments, train_dataset=TrainingPassages(fables), record=out, columns=COLUMNS,
            dataset=DATASET, query_sets={QUERY_SET: {"input_ids": torch.from_numpy(test)}},
            query_set_labels={QUERY_SET: np.append(fables.test.ids, -1)[1 : test.size + 1]},
            query_set_previews={QUERY_SET: fables.preview_set(fables.test)}, recorder={"quiet": True},
        )  # fmt: skip
        trainer.train()
    seconds = perf_counter() - start
    fables.preview_set(fables.train).store(out, DATASET)
    return network.cpu().eval(), seconds


@torch.no_grad()
def log_probabilities(network: nn.Module, passages: Tensor) -> Tensor:
    """float32[n, L, V]: of each next token."""
    return torch.cat([network(input_ids=part).logits.log_softmax(-1) for part in torch.split(passages, 64)])
