"""dualform token: the token on stdout, its digest's line in the server's file."""

from __future__ import annotations

import json
import stat

from dualform_service.auth import read_tokens


def test_makes_a_token_and_shows_the_line_for_the_server(dualform):
    told = dualform("token", "alice")
    token, line = told.out.strip(), told.err.strip()
    assert line.startswith("for the server's token file: alice read sha256:")
    assert token not in line
    assert len(told.out.splitlines()) == 1


def test_adds_lines_to_a_file_that_only_its_owner_may_read(dualform, tmp_path):
    file = tmp_path / "tokens"
    alice = dualform("token", "alice", "--file", str(file)).out.strip()
    bob = json.loads(dualform("token", "bob", "--scopes", "read,sql", "--file", str(file), "--json").out)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tokens = read_tokens(file)
    assert tokens.names == ("alice", "bob")
    assert tokens.caller([("authorization", f"Bearer {alice}")]).scopes == {"read"}
    assert tokens.caller([("authorization", f"Bearer {bob['token']}")]).scopes == {"read", "sql"}


def test_a_line_that_ended_without_a_newline_stays_whole(dualform, tmp_path):
    file = tmp_path / "tokens"
    dualform("token", "alice", "--file", str(file))
    file.write_text(file.read_text().rstrip("\n"))
    assert dualform("token", "bob", "--file", str(file)).code == 0
    assert read_tokens(file).names == ("alice", "bob")


def test_what_cannot_be_added_is_refused_and_changes_nothing(dualform, tmp_path):
    file, bare = tmp_path / "tokens", tmp_path / "bare"
    dualform("token", "alice", "--file", str(file))
    before = file.read_bytes()
    bare.write_text("a-token-as-it-is-in-a-file\n")
    bare.chmod(0o600)
    for arguments, says in [
        (("alice", "--file", str(file)), "already has a token for alice"),
        (("bob", "--file", str(bare)), "holds a bare token"),
        (("bob", "--file", str(tmp_path / "no" / "such")), "cannot be written: No such file or directory"),
        (("two words",), "'two words' cannot name a token"),
        (("bob", "--scopes", "everything"), "Unknown scope 'everything'"),
    ]:
        told = dualform("token", *arguments)
        assert (told.code, told.out) == (2, "")
        assert says in told.err
    assert file.read_bytes() == before
