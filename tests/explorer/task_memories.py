"""The three trainings that tests.explorer.tasks asks about: one that forgets, a CNN, and a GPT-2 shape.

All are small enough to be recorded in a few minutes on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dualform
from dualform_studies.images.datasets import load_dataset
from dualform_studies.images.training import Recipe, train_in_succession
from dualform_studies.text.corpora import load_corpus

FORGETTING_STEPS = 3000
"""On each dataset, as in the study, which trains twice more for its report."""
IMAGES, HELD_IMAGES, EPOCHS, BATCH = 3000, 300, 2, 32
WORDS, LENGTH, HELD_TEXTS, WIDTH = 1000, 64, 40, 64


def record_continual(data: Path, path: Path) -> None:
    """MNIST, then Fashion-MNIST, by the recipe of the continual study."""
    pair = load_dataset("mnist", data), load_dataset("fashion-mnist", data)
    train_in_succession(pair, Recipe(steps=FORGETTING_STEPS), 0, record_to=path)


def record_cnn(data: Path, path: Path) -> None:
    """Two convolutions with BatchNorm under AdamW, on Fashion-MNIST."""
    torch.manual_seed(0)
    found = load_dataset("fashion-mnist", data)
    side, names = found.side, list(found.label_names)
    rows = np.sort(np.random.default_rng(0).permutation(len(found.train))[:IMAGES])
    images = torch.from_numpy(found.inputs(found.train, rows)).reshape(-1, 1, side, side)
    labels = torch.from_numpy(found.train.labels[rows])
    held = torch.from_numpy(found.inputs(found.test, slice(HELD_IMAGES))).reshape(-1, 1, side, side)
    model = nn.Sequential()
    for name, layer in {
        "conv-1": nn.Conv2d(1, 8, 3, stride=2, padding=1),
        "norm-1": nn.BatchNorm2d(8),
        "relu-1": nn.ReLU(),
        "conv-2": nn.Conv2d(8, 16, 3, stride=2, padding=1),
        "norm-2": nn.BatchNorm2d(16),
        "relu-2": nn.ReLU(),
        "flat": nn.Flatten(),
        "head": nn.Linear(16 * 7 * 7, 10),
    }.items():
        model.add_module(name, layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shown = found.train.pixels[rows].reshape(-1, side, side)
    with dualform.Recorder(model, optimizer, path, label_names={found.name: names}, quiet=True) as recorder:
        recorder.previews(found.name, dualform.PreviewSet.images(shown, samples=rows))
        for epoch in range(EPOCHS):
            order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch))
            for index in order.split(BATCH):
                with recorder.step(dataset=found.name, label=labels[index], sample=torch.from_numpy(rows)[index]):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
                    optimizer.step()
        own = dualform.PreviewSet.images(found.test.pixels[:HELD_IMAGES].reshape(-1, side, side))
        recorder.query_set("test", held, label=found.test.labels[:HELD_IMAGES], previews=own)


def record_gpt(data: Path, path: Path) -> None:
    """Two blocks of a GPT-2 under AdamW by the Hugging Face Trainer, on Aesop. The tokenizer lies beside the memory."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

    from dualform.integrations.transformers import RecordingTrainer, next_token

    corpus = load_corpus("aesop", data)
    book = corpus.train + corpus.test
    tokenizer: Any = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [book], trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.save(str(path.parent / "tokenizer.json"))
    encoded = tokenizer.encode(book)
    passages = [slice(at, at + LENGTH) for at in range(0, len(encoded.ids) - LENGTH + 1, LENGTH)]
    tokens = torch.tensor([encoded.ids[own] for own in passages])

    def previews(chosen: list[slice]) -> dualform.PreviewSet:
        texts, offsets = [], []
        for own in chosen:
            places = np.array(encoded.offsets[own])
            begin, end = int(places[0, 0]), int(places[-1, 1])
            texts.append(book[begin:end])
            offsets.append(places - begin)
        return dualform.PreviewSet.texts(texts, offsets=offsets)

    set_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.get_vocab_size(), **sizes, bos_token_id=0, eos_token_id=0))
    trained, held = passages[:-HELD_TEXTS], tokens[-HELD_TEXTS:]
    following = held.roll(-1, dims=1)
    following[:, -1] = -1
    arguments = TrainingArguments(
        str(path.parent / "trainer"),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    RecordingTrainer(
        model,
        arguments,
        train_dataset=[
            {"input_ids": own, "labels": own, "sample": number} for number, own in enumerate(tokens[:-HELD_TEXTS])
        ],
        record=path,
        dataset="aesop",
        columns={"label": next_token, "sample": "sample"},
        query_sets={"held": {"input_ids": held}},
        query_set_labels={"held": following},
        query_set_previews={"held": previews(passages[-HELD_TEXTS:])},
    ).train()
    previews(trained).store(path, "aesop")
