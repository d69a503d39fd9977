"""The .proto is in good form, and clients that were written against the released shape of it go on working."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from dualform_proto.v1 import dualform_pb2 as pb

PROTOS = Path(__file__).parents[2] / "protos"
SOURCE, RELEASED = Path("dualform_proto", "v1", "dualform.proto"), PROTOS / "released.binpb"
BUF = Path(sys.executable).with_name("buf")


def buf(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BUF, *command], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def altered(tmp_path):
    """A function that makes a copy of `protos/` in which one text of the .proto is another, and returns where."""

    def alter(old: str, new: str) -> Path:
        text = (PROTOS / SOURCE).read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        (tmp_path / SOURCE).parent.mkdir(parents=True)
        (tmp_path / SOURCE).write_text(text.replace(old, new), encoding="utf-8")
        shutil.copy(PROTOS / "buf.yaml", tmp_path)
        return tmp_path

    return alter


def test_it_is_in_good_form():
    done = buf("lint", PROTOS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_breaks_no_client_of_the_released_shape():
    done = buf("breaking", PROTOS, "--against", RELEASED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  int64 k = 3;\n", "", 'Previously present field "3" with name "k" on message "TopKRequest" was deleted.'),
        ("  bytes scores = 2;", "  string scores = 2;", "changed type from"),
        ("  SCORE_ABS = 2;\n", "", 'Previously present enum value "2" on enum "Score" was deleted.'),
        ("rpc Sql(SqlRequest)", "rpc Sql(stream SqlRequest)", "from client unary to client streaming"),
    ],
)
def test_what_would_break_one_is_refused(altered, old, new, says):
    done = buf("breaking", altered(old, new), "--against", RELEASED)
    assert done.returncode == 100
    assert says in done.stdout + done.stderr


def test_the_generated_code_is_of_this_text(tmp_path):
    """As `make protos` makes it; compilers need not agree on the names that JSON has for fields."""
    image = tmp_path / "image.binpb"
    assert buf("build", PROTOS, "--exclude-source-info", "-o", image).returncode == 0
    (written,) = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file
    generated = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for file in (written, generated):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    written.ClearField("syntax")
    generated.ClearField("syntax")
    assert str(written) == str(generated)
