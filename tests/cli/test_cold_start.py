"""What a command loads before it answers."""

from __future__ import annotations

import subprocess
import sys

from tests.contract.recorded import record

ASK = """
import sys
from dualform_client.cli import main
sys.argv = ["dualform", *sys.argv[1:]]
code = main()
print({"grpc", "pandas", "torch", "faiss"} & set(sys.modules), code, file=sys.stderr)
"""


def test_asking_a_folder_loads_no_grpc_and_no_pandas(tmp_path):
    command = ["topk", str(record(tmp_path / "run")), "--layer", "2", "--query", "test/1", "--where", "label <> 1"]
    asked = subprocess.run([sys.executable, "-c", ASK, *command, "--json"], capture_output=True, text=True)
    assert asked.stderr.splitlines()[-1:] == ["set() 0"]
    assert '"hits"' in asked.stdout
