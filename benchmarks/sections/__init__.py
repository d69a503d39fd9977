"""One file for each kind of question: `run(plan)` measures it. Every section runs in a process of its own."""

from __future__ import annotations

from importlib import import_module

from benchmarks.plan import Plan
from benchmarks.result import Section

SECTIONS = {
    "floor": "what the machine can do",
    "cold": "first answers of whole processes",
    "topk": "the ten best slots",
    "masked": "the ten best slots under a mask",
    "grouped": "the best slots of each group",
    "sums": "sums by group",
    "canonical": "what canonical answers cost",
    "forms": "forms of the compiled loops",
    "growth": "time and memory as the memory grows",
    "serving": "questions over gRPC",
    "recording": "training with the recorder on",
    "weights": "masked weights of the whole network",
    "adamw": "masked weights of networks trained under AdamW",
    "checkpointing": "training with activations checkpointed and the recorder on",
    "study_sums": "sums of the study's test queries at all layers",
}
"""In the order of the document."""


def run(name: str, plan: Plan) -> Section:
    module = import_module(f"benchmarks.sections.{name}")
    section: Section = module.run(plan)
    return section
