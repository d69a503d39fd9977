"""The settings of `dualform serve`: one table, of which the command line, the environment, the file and the documents
have their names, defaults and words.

A new setting is a line of SETTINGS. One whose name is a field of ServiceConfig fills that field, and has its default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from dualform_service.config import ServiceConfig
from dualform_service.setting_kinds import KINDS, Kind

PREFIX = "DUALFORM_SERVE_"
"""Of the environment's variables. A prefix of the server's own: the commands that ask have a DUALFORM_TOKEN_FILE, too,
and of a prefix of its own every unknown name can be refused."""
CONFIG = "config"
"""The setting that names the file, and stands in none."""

EXPLORE = "127.0.0.1:50080"
"""Of pages where no address is said."""

CONFIG_DEFAULTS = {field.name: field.default for field in fields(ServiceConfig)}


@dataclass(frozen=True)
class Setting:
    name: str
    """As the file has it: `max_small`, which is --max-small and DUALFORM_SERVE_MAX_SMALL."""
    kind: Kind
    what: str
    """A sentence or two, for --help and the documents."""
    metavar: str | None = None
    own_default: Any = None
    """Of one that is no field of ServiceConfig."""
    otherwise: str = ""
    """What holds where it is not given, if that is no value."""
    choices: tuple[str, ...] = ()
    """Of a text: all that it may be."""
    bare: str | None = None
    """What its flag says where nothing follows it; None where something must."""

    def read(self, said: Any) -> Any:
        """The value of what a source says. Raises ValueError."""
        value = KINDS[self.kind].read(said)
        if self.choices and value not in self.choices:
            raise ValueError
        return value

    @property
    def wanted(self) -> str:
        """Said of what cannot be read."""
        return f"must be {' or '.join(self.choices)}" if self.choices else KINDS[self.kind].wanted

    @property
    def placeholder(self) -> str:
        """In the place of a value, in --help."""
        return self.metavar or (f"[{'|'.join(self.choices)}]" if self.choices else KINDS[self.kind].metavar)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default(self) -> Any:
        return CONFIG_DEFAULTS.get(self.name, self.own_default)

    @property
    def shown_default(self) -> str:
        """Empty where `what` says enough."""
        if self.otherwise or self.default is None:
            return self.otherwise
        if self.kind == "bytes":
            return f"{self.default / 2**20:g} MiB"
        if self.kind == "yes or no":
            return "yes" if self.default else "no"
        return f"{self.default:g}" if self.kind == "seconds" else str(self.default)


SETTINGS = (
    Setting("address", "text", "Address to listen on; port 0 picks a free one.", "HOST:PORT"),
    Setting(
        "token_file",
        "file",
        "Token file, made by `dualform token`; read again when it changes.",
        otherwise="no token",
    ),
    Setting("token_rate", "number", "Queries a second that each caller may send.", otherwise="unlimited"),
    Setting("tls_cert", "file", "PEM file of the server's certificate chain.", otherwise="no TLS"),
    Setting("tls_key", "file", "PEM file of the certificate's key; goes with --tls-cert."),
    Setting(
        "tls_client_ca",
        "file",
        "PEM file of the authorities that must have signed callers' certificates.",
        otherwise="no certificates",
    ),
    Setting("sql", "yes or no", "Answer SQL statements."),
    Setting("max_concurrent", "whole number", "Large queries held at once; two of them run."),
    Setting(
        "max_small",
        "whole number",
        "Small queries held at once, for each of light scans, other shared scans and look-ups.",
    ),
    Setting("deadline", "seconds", "Seconds after which work on a query stops."),
    Setting("request_bytes", "bytes", "Largest request."),
    Setting("answer_bytes", "bytes", "Largest result."),
    Setting(
        "ram",
        "bytes",
        'RAM limit of the process, such as "2 GB".',
        otherwise="half of the machine's for keys and values, an eighth for their codes",
    ),
    Setting(
        "ray",
        "text",
        "Ray cluster that answers each shard, such as `auto`; `local` starts one here.",
        "ADDRESS",
        otherwise="no cluster",
    ),
    Setting(
        "shard_deadline",
        "seconds",
        "Seconds for a shard to answer, with --ray; a process that misses it is replaced.",
        own_default=60.0,
    ),
    Setting(
        "metrics", "text", "Address of Prometheus metrics, http://HOST:PORT/metrics.", "HOST:PORT", otherwise="off"
    ),
    Setting(
        "explore",
        "text",
        f"Address of the explorer's pages; without a value {EXPLORE}.",
        "[HOST:PORT]",
        otherwise="off",
        bare=EXPLORE,
    ),
    Setting(
        "tracing",
        "yes or no",
        "Send OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT.",
        own_default=False,
    ),
    Setting(
        "log",
        "text",
        "Format of stderr; `json` adds a line for each call.",
        own_default="text",
        choices=("text", "json"),
    ),
)


def markdown() -> str:
    """The table of docs/operations.md."""
    lines = ["| flag | default | what it sets |", "| --- | --- | --- |"]
    lines += [f"| `{one.flag}` | {one.shown_default or '—'} | {one.what} |" for one in SETTINGS]
    return "\n".join(lines) + "\n"


def options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Gives a command an option for every setting, by `click.option`; what is not given is None."""

    def given(command: Any) -> Any:
        for one in reversed(SETTINGS):
            said = f"{one.what} Default: {one.shown_default}." if one.shown_default else one.what
            if one.kind == "yes or no":
                command = option(f"{one.flag}/--no-{one.flag[2:]}", one.name, default=None, help=said)(command)
            elif one.bare is not None:
                alone: dict[str, Any] = {"is_flag": False, "flag_value": one.bare}
                command = option(one.flag, one.name, metavar=one.placeholder, help=said, **alone)(command)
            else:
                command = option(one.flag, one.name, metavar=one.placeholder, help=said)(command)
        return command

    return given


if __name__ == "__main__":
    sys.stdout.write(markdown())
