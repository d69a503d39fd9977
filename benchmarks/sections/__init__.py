"""One file for each kind of question: `run(plan)` measures it. Every section runs in a process of its own."""

from __future__ import annotations

from importlib import import_module

from benchmarks.plan import Plan
from benchmarks.result import Section

FELT = {
    "cold": "first answers of whole processes",
    "recording": "training with the recorder on",
    "checkpointing": "training with activations checkpointed and the recorder on",
    "long_training": "a long training of small steps",
    "rerun": "a training run again in place of stored keys",
    "serving": "questions over gRPC",
    "explorer": "pages for a browser",
    "strangers": "light questions beside floods",
    "memory": "memory of a server and of whole studies",
}
"""What a person feels: the first answer, the training that is recorded, many clients."""
REPEATED = {
    "topk": "the ten best slots",
    "filtered": "the ten best slots under a filter",
    "grouped": "the best slots of each group",
    "sums": "sums by group",
    "canonical": "what canonical answers cost",
    "forms": "forms of the compiled loops",
    "contributions": "contributions along a direction",
    "gradients": "dot products of gradients over several layers",
    "ledger": "examples followed through a training",
    "growth": "time and memory as the memory grows",
    "weights": "ablated weights of the whole network",
    "adamw": "ablated weights of networks trained under AdamW",
    "study_sums": "sums of the study's test queries at all layers",
    "floor": "what the machine can do",
}
"""What questions cost of a memory that was asked before, and what the machine's memory bus allows."""
SECTIONS = FELT | REPEATED
"""In the order of the document."""


def run(name: str, plan: Plan) -> Section:
    module = import_module(f"benchmarks.sections.{name}")
    section: Section = module.run(plan)
    return section
