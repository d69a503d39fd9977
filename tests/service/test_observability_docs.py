"""What documents and dashboards say of metrics and lines is what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dualform_client import Client
from dualform_service.call_record import CallRecord, JsonLog
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.service.held_engine import outcomes, until
from tests.service.test_metrics import asked

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
HISTOGRAMS = {"dualform_call_seconds", "dualform_scan_queries"}
SERIES = re.compile(r"\b(?:dualform|process)_[a-z_]+")


ROWS = re.findall(r"^\| `(dualform_\w+)` \| (.*?) \| (.*) \|$", DOCUMENT, re.MULTILINE)


@pytest.fixture(scope="module")
def scraped():
    """Families of a server that was asked a question."""
    from tests.service.canned import Canned

    config = ServiceConfig("127.0.0.1:0", metrics="127.0.0.1:0")
    with Server(Canned(), config) as server, Client(server.address) as client:
        client.topk("fc", "test")
        until(lambda: outcomes(server, "TopK"))
        return list(text_string_to_metric_families(asked(server.metrics_address)[1]))


@pytest.fixture(scope="module")
def registry(scraped):
    """Labels by name, as they are scraped."""
    found = {
        sample.name: set() for family in scraped for sample in family.samples if family.name.startswith("process_")
    }
    for name, labels, _ in ROWS:
        endings = ("_bucket", "_sum", "_count") if name in HISTOGRAMS else ("",)
        own = set(re.findall(r"`(\w+)`", labels))
        found |= {name + ending: own | ({"le"} if ending == "_bucket" else set()) for ending in endings}
    return found


def test_the_table_of_metrics_is_what_is_scraped(scraped, registry):
    families = {
        family.name + "_total" * (family.type == "counter"): (family.documentation, family)
        for family in scraped
        if not family.name.startswith("process_")
    }
    assert {name: what for name, _, what in ROWS} == {name: what for name, (what, _) in families.items()}
    for _, family in families.values():
        for sample in family.samples:
            assert sample.labels.keys() == registry[sample.name]
    assert {family.name for family in scraped if family.type == "histogram"} == HISTOGRAMS


def test_every_series_that_is_named_is_there(registry):
    named = set(SERIES.findall(DOCUMENT)) - {"dualform_client", "dualform_service"}
    if not any(name.startswith("process_") for name in registry):
        pytest.skip("the system has no /proc, so there are no series of the process")
    assert named <= {name for name, _, _ in ROWS} | registry.keys()
    assert {name for name in registry if name.startswith("process_")} <= named


def test_the_dashboard_uses_series_and_labels_that_there_are(registry):
    assert len(EXPRESSIONS) > 20
    for expression in [*EXPRESSIONS, "dualform_open_calls"]:
        names = SERIES.findall(expression)
        assert names, expression
        for name in names:
            assert name in registry or (name.startswith("process_") and not Path("/proc/self").exists()), expression
        labels = set().union(*(registry.get(name, set()) for name in names)) | {"instance"}
        grouped = ",".join(re.findall(r"by \(([^)]*)\)", expression)).replace(" ", "").split(",")
        used = set(filter(None, grouped)) | set(re.findall(r"[{,](\w+)[=!]", expression))
        assert used <= labels, expression


def test_the_dashboard_shows_every_family(registry):
    shown = {name for expression in EXPRESSIONS for name in SERIES.findall(expression)}
    for name, _, _ in ROWS:
        assert {name, name + "_bucket", name + "_sum"} & shown, name


def test_the_line_that_is_shown_is_such_a_line(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        log = JsonLog(file.fileno())
        log.call(CallRecord("TopK", "id", "peer"))
        log.close()
    (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    (shown,) = map(json.loads, re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL))
    assert {key: type(value) for key, value in shown.items()} == {key: type(value) for key, value in line.items()}
    keys = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCUMENT.split("## Metrics")[0], re.MULTILINE)))
    assert [key for key in line if key != "kind"] == keys
