"""The clients of `clients/examples`, in Node and Go, ask a server as they stand there."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import dualform
from dualform.errors import NotFound
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.service.test_tls import certificate

ROOT = Path(__file__).parents[2]
EXAMPLES, BUILT = ROOT / "clients" / "examples", ROOT / "build" / "examples"
TOKEN = "a token of the examples"
QUERIES, SLOTS = 1000, 500
"""So the best slots of all queries take 6 MB, 12 bytes each: more than gRPC takes by default."""
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "ERR_SOCKET_TIMEOUT")
DEBIAN = Path("/usr/share/gocode/src/google.golang.org")
TOOLS = ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
OLDER = (
    ('\t"google.golang.org/grpc/credentials/insecure"\n', ""),
    ("grpc.WithTransportCredentials(insecure.NewCredentials())", "grpc.WithInsecure()"),
    ("grpc.NewClient(", "grpc.Dial("),
)
"""What Debian 12 has of gRPC for Go calls these two by other names."""

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

Asked = subprocess.CompletedProcess[str]
Ask = Callable[..., Asked]


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """The folder of what is built for a language, which tests of several processes share."""
    folder = BUILT / name
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@cache
def node(raised: str = "64 * 2 ** 20") -> list[str]:
    """The command that asks from Node. `raised`: how many bytes of an answer it takes."""
    if shutil.which("npm") is None:
        pytest.skip("there is no Node here, or no npm")
    with alone("node") as folder:
        wanted = (EXAMPLES / "node" / "package-lock.json").read_bytes()
        installed = folder / "package-lock.json"
        if not (folder / "installed").is_file() or installed.read_bytes() != wanted:
            for file in (EXAMPLES / "node").iterdir():
                if file.is_file():
                    shutil.copy(file, folder)
            done = run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], cwd=folder)
            if any(code in done.stderr for code in UNREACHABLE):
                pytest.skip(f"npm reaches no registry: {done.stderr.splitlines()[-1]}")
            assert done.returncode == 0, done.stderr
            (folder / "installed").touch()
        program = folder / f"ask-{raised.replace(' ', '')}.js"
        text = (EXAMPLES / "node" / "ask.js").read_text(encoding="utf-8")
        assert text.count("64 * 2 ** 20") == 1
        program.write_text(text.replace("64 * 2 ** 20", raised), encoding="utf-8")
    return ["node", str(program)]


@cache
def go(raised: str = "64<<20") -> list[str]:
    """The command that asks from Go, built of the packages of Debian."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"there is no {missing[0]} here")
    if not all((DEBIAN / name).is_dir() for name in ("grpc", "protobuf", "genproto")):
        pytest.skip("Debian's golang-google-grpc-dev and golang-github-golang-protobuf-1-5-dev are not here")
    with alone("go") as folder:
        source = folder / "src" / "dualform.example" / "ask"
        source.mkdir(parents=True, exist_ok=True)
        text = (EXAMPLES / "go" / "main.go").read_text(encoding="utf-8")
        for new, old in OLDER:
            assert text.count(new) == 1, new
            text = text.replace(new, old)
        assert text.count("64<<20") == 1
        text = text.replace("64<<20", raised).replace("../../../protos", str(ROOT / "protos"))
        (source / "main.go").write_text(text, encoding="utf-8")
        built = folder / f"ask-{raised}"
        paths = {"GOPATH": f"{folder}:/usr/share/gocode", "GOCACHE": str(folder / "cache"), "GO111MODULE": "off"}
        for command in (["go", "generate", "."], ["go", "vet", "."], ["go", "build", "-o", str(built), "."]):
            done = run(command, cwd=source, env={**os.environ, **paths})
            assert done.returncode == 0, done.stderr
    return [str(built)]


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> Asked:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def memory(tmp_path_factory) -> Iterator[dualform.Answers]:
    torch.manual_seed(13)
    model = torch.nn.Sequential(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("languages") / "run"
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(5):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(SLOTS // 5, 16)).square().sum().backward()
                optimizer.step()
        recorder.query_set("test", torch.randn(QUERIES, 16))
    with dualform.open(path) as memory:
        yield memory


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("languages"), "one")


@pytest.fixture
def ask(memory, chain) -> Iterator[Ask]:
    """Runs a command with arguments, against a server that wants a token and speaks TLS."""
    config = ServiceConfig("127.0.0.1:0", token=TOKEN, certificate=chain[0], key=chain[1])
    with Server(memory, config) as server:

        def ask(command: list[str], *arguments: str, **variables: str) -> Asked:
            known = {"DUALFORM_TOKEN": TOKEN, "DUALFORM_CA": str(chain[0]), **variables}
            given = {key: value for key, value in known.items() if value}
            return run(
                [*command, server.address.replace("127.0.0.1", "localhost"), *arguments],
                cwd=ROOT,
                env={**os.environ, **given},
            )

        yield ask


@pytest.mark.parametrize("language", [node, go], ids=["node", "go"])
def test_answers_are_those_of_python_to_the_bit(language, ask, memory):
    done = ask(language(), "0", "test", str(SLOTS))
    assert (done.returncode, done.stderr) == (0, "")
    hits = memory.topk("0", "test", k=SLOTS)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [int(slot) for slot, _ in rows] == hits.slots[0].tolist()
    assert np.array([score for _, score in rows], dtype=np.float32).tolist() == hits.scores[0].tolist()


@pytest.mark.parametrize("language", [node, go], ids=["node", "go"])
def test_errors_come_with_reason_and_hint(language, ask, memory):
    command = language()
    done = ask(command, "none", "test", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "not_found: There is no layer 'none'.\nLayers: 0.\n"
    with pytest.raises(NotFound) as caught:
        memory.query_set("test", "none")
    assert done.stderr == f"not_found: {caught.value.message}\n{caught.value.hint}\n"
    for wrong in ("not this one, nor any other", ""):
        done = ask(command, "0", "test", "1", DUALFORM_TOKEN=wrong)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.match(r"unauthenticated: .*\n.+\n$", done.stderr)


@pytest.mark.parametrize("language", [node, go], ids=["node", "go"])
def test_a_certificate_that_it_was_not_told_to_trust_is_refused(language, ask, tmp_path):
    other, _ = certificate(tmp_path, "other")
    done = ask(language(), "0", "test", "1", DUALFORM_CA=str(other))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search("certificate", done.stderr)
