"""What deploy/ says to systemd, containers and Kubernetes: the commands run, the settings exist, and tools that judge
such files find nothing wrong, where they are at hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from pathlib import Path

import click
import pytest
import yaml

from dualform_client.cli.main import dualform as group
from dualform_service.settings import PREFIX, SETTINGS, options
from tests.cases import some
from tests.service.test_tls import certificate
from tests.store import small_memory

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
VARIABLES = {one.variable for one in SETTINGS}
UNIT = DEPLOY / "dualform@.service"
KUBERNETES = DEPLOY / "kubernetes.yml"


def dockerfile():
    """Instructions, each a line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def last(name):
    return [rest for word, rest in dockerfile() if word == name][-1]


def unit():
    parser = RawConfigParser(strict=False, allow_no_value=True)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def compose():
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())


def kubernetes():
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


def parses(words):
    """Whether the command line takes these words; `words` begin with the program's name."""
    with click.Context(group) as context:
        command = group.get_command(context, words[1])
    command.make_context(words[1], list(words[2:]), resilient_parsing=False)


def image_settings():
    return dict(part.split("=", 1) for part in last("ENV").split())


def test_the_images_settings_and_extras_exist_and_it_is_built_with_loops_or_not_at_all():
    assert set(image_settings()) <= VARIABLES
    assert json.loads(last("ENTRYPOINT")) == ["dualform", "serve"]
    assert last("USER") == "10001:10001"
    runs = [rest for word, rest in dockerfile() if word == "RUN"]
    assert "DUALFORM_REQUIRE_LOOPS=1 pip wheel" in runs[0]
    assert "loader.load()" in runs[-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for engine in ("cpu", "gpu"):
        extras = re.search(rf"{engine}\) extras=(\S+)", runs[-1])[1]
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_what_the_image_is_built_of_is_not_ignored():
    sources = [word for name, rest in dockerfile() if name == "COPY" and "--from" not in rest for word in rest.split()]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in some({word for word in sources if (ROOT / word).exists() and not word.startswith(("/", "."))}):
        assert f"!{source}" in allowed, source


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_the_images_commands_serve_a_memory_and_find_it_healthy(tmp_path):
    """The entry point and the health check themselves, with the image's variables; /secrets and /memory elsewhere."""
    small_memory.write(tmp_path / "memory", [4])
    pair = certificate(tmp_path, "cert")
    shutil.copy(pair[1], tmp_path / "key.pem")
    own = [sys.executable, "-m", "dualform_client.cli"]
    made = subprocess.run([*own, "token", "a", "--file", str(tmp_path / "tokens")], capture_output=True, check=True)
    assert made.stdout

    def here(word):
        return word.replace("/secrets/", f"{tmp_path}/").replace("/memory", f"{tmp_path}/memory")

    settings = {name: here(value) for name, value in image_settings().items()}
    settings[f"{PREFIX}_ADDRESS"] = "0.0.0.0:0"
    serve = [*own, *json.loads(last("ENTRYPOINT"))[1:], *map(here, json.loads(last("CMD")))]
    with subprocess.Popen(serve, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip().rpartition(":")[2]
            check = json.loads(last("HEALTHCHECK").split("CMD ")[1])[1:]
            words = [here(word).replace(":50051", f":{port}") for word in check]
            assert subprocess.run([*own, *words], timeout=60).returncode == 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_the_unit_has_one_port_an_instance_and_bounds():
    service = unit()["Service"]
    command = service["ExecStart"].split()
    config = str(DEPLOY / "dualform.toml")
    parses(["dualform", *(word.replace("/etc/dualform/%i.toml", config) for word in command[1:])])
    # Its address stands in a file of the instance's own.
    assert "--address" not in command
    assert "/etc/dualform/%i.toml" in command
    assert service["Type"] == "notify"
    assert {"WatchdogSec", "MemoryMax", "LimitNOFILE", "TasksMax"} <= set(service)
    assert int(service["TimeoutStopSec"]) > 10
    values = click.Command("serve", params=options()).make_context("serve", ["--config", config]).params
    assert values["address"].endswith(":50051")


def test_compose_uses_settings_and_files_that_there_are():
    services = compose()["services"]
    assert set(services) == {"dualform", "prometheus", "grafana"}
    assert set(services["dualform"]["environment"]) <= VARIABLES
    build = services["dualform"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    assert set(build["args"]) == {"ENGINE"}
    for service in services.values():
        for volume in service["volumes"]:
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).is_file(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert not service.get("image", "").endswith(":latest")
    # Prometheus finds its secrets and the server where they are put.
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    mounts = {volume.rsplit(":", 2)[1] for volume in services["prometheus"]["volumes"][:-1]}
    assert {job["authorization"]["credentials_file"], job["tls_config"]["ca_file"]} <= mounts
    port = services["dualform"]["environment"][f"{PREFIX}_METRICS"].split(":")[1]
    assert job["static_configs"] == [{"targets": [f"dualform:{port}"]}]


def test_the_pods_commands_and_settings_exist():
    deployment, service = kubernetes()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {one["name"] for one in container["env"]} <= VARIABLES
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        parses(container[probe]["exec"]["command"])
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["targetPort"] for one in service["spec"]["ports"]} == set(ports)
    assert ports["grpc"] == int(image_settings()[f"{PREFIX}_ADDRESS"].split(":")[1])
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 10


def judged(*command):
    # Beside this Python, as `make setup` has it, or wherever the system looks.
    found = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{command[0]} is not installed, which judges such a file")
    return subprocess.run((found, *command[1:]), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", DEPLOY / "Dockerfile"),
        ("kubernetes-validate", "--strict", KUBERNETES),
        ("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", UNIT),
    ],
    ids=lambda command: command[0],
)
def test_tools_that_judge_such_files_find_nothing(command):
    told = judged(*map(str, command))
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr
    assert command[0] != "hadolint" or told.stdout == ""


def test_systemd_verifies_the_unit(tmp_path):
    (tmp_path / "dualform").write_text("#!/bin/sh\n")
    (tmp_path / "dualform").chmod(0o755)
    text = UNIT.read_text().replace("/opt/dualform/bin/dualform", str(tmp_path / "dualform"))
    (tmp_path / UNIT.name).write_text(text)
    told = judged("systemd-analyze", "verify", str(tmp_path / "dualform@mnist.service"))
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
