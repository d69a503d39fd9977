"""The training itself: a Lightning trainer, as a user would set it up, and one callback that records it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dualform.extras import missing_package
from dualform_studies.images.data.datasets import Dataset, Images, Rows
from dualform_studies.images.data.previews import examples_of, preview_set_of
from dualform_studies.networks.other_weights import other_weights
from dualform_studies.networks.resnet18.network import ResNet18, build_network
from dualform_studies.networks.resnet18.recipe import Recipe

COLUMNS = {"label": 1, "sample": 2}
"""Of a batch of images, labels and rows in the training file."""
QUERY_SET = "test"


def pictures(dataset: Dataset, images: Images, rows: Rows = slice(None)) -> Tensor:
    """float32[n, 1, side, side], normalised."""
    return torch.from_numpy(dataset.inputs(images, rows)).view(-1, 1, dataset.side, dataset.side)


def trained_rows(dataset: Dataset, recipe: Recipe) -> NDArray[np.int64]:
    """int64[R]: rows of the training file that the network learns."""
    return dataset.split.trained[: recipe.images]


def train(dataset: Dataset, recipe: Recipe, seed: int, out: Path, probed: NDArray[np.int64]) -> tuple[ResNet18, float]:
    """The trained network, whose memory is in `out`, with the test images `probed` as a query set; and the seconds that
    the training took. Raises MissingPackage where Lightning is not installed."""
    try:
        import pytorch_lightning as lightning
    except ImportError as error:
        raise missing_package(error) or error from None
    from dualform.integrations.lightning import RecordCallback

    network, start = build_network(recipe.width, len(dataset.label_names), seed), perf_counter()
    rows = trained_rows(dataset, recipe)
    data = TensorDataset(
        pictures(dataset, dataset.train, rows),
        torch.from_numpy(dataset.train.labels[rows]),
        torch.from_numpy(rows),
    )
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, recipe.batch, shuffle=True, generator=order)
    record = RecordCallback(
        out, columns=COLUMNS, dataset=dataset.name, query_sets={QUERY_SET: pictures(dataset, dataset.test, probed)},
        query_set_labels={QUERY_SET: dataset.test.labels[probed]},
        query_set_previews={QUERY_SET: examples_of(dataset, probed)},
        label_names={dataset.name: list(dataset.label_names)}, quiet=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice on loaders and loggers
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = lightning.Trainer(
            max_steps=recipe.updates, callbacks=[record], precision="bf16-mixed", gradient_clip_val=recipe.clip,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(_module(lightning, network, recipe), loader)
    seconds = perf_counter() - start
    preview_set_of(dataset, dataset.train, rows).store(out, dataset.name)
    return network.cpu().eval(), seconds


def _module(lightning: Any, network: ResNet18, recipe: Recipe) -> Any:
    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        """The network, and how it is trained."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Tensor) -> Tensor:
            predicted: Tensor = network(images)
            return predicted

        def training_step(self, batch: tuple[Tensor, Tensor, Tensor], number: int) -> Tensor:
            return nn.functional.cross_entropy(network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=recipe.updates)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Classifier()


@torch.no_grad()
def logits(network: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """float32[n, classes]."""
    return np.concatenate([network(part).numpy() for part in torch.split(images, 500)])


@contextmanager
def new_statistics(network: nn.Module, images: Tensor) -> Iterator[None]:
    """Within the block the batch normalisations have mean and variance of these images, as the network is now, and
    their own running statistics again afterwards."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momentum = [norm.momentum for norm in norms]
    with other_weights(network, network.state_dict()), torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        network.train()
        for part in torch.split(images, 500):
            network(part)
        network.eval()
        try:
            yield
        finally:
            for norm, own in zip(norms, momentum, strict=True):
                norm.momentum = own
