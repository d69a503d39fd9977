"""A training that records: `python -m tests.explorer.recording_process FOLDER` takes as many steps as each line of
stdin says, has them on disk and says how many there are; stdin's end is the training's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import dualform
from tests.explorer.recorded import ROWS, images_of, network
from tests.trainings import learn


def main(path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = images_of(0, 0)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        done = 0
        for line in sys.stdin:
            for _ in range(int(line)):
                with recorder.step(dataset="shapes", label=labels[:ROWS], sample=torch.arange(ROWS)):
                    learn(optimizer, torch.nn.functional.cross_entropy(model(inputs[:ROWS]), labels[:ROWS]))
                done += 1
            if done == int(line):
                recorder.query_set("test", inputs, label=labels)
            recorder.flush()
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
