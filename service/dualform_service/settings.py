"""The settings of `dualform serve`: one table, of which the command line, the environment and the file have their
names, defaults and words.

A new setting is a line of SETTINGS. One whose name is a field of ServiceConfig fills that field, and has its default.
"""

from __future__ import annotations

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
    """A short sentence, for --help."""
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
    Setting("address", "text", "Listen here.", "HOST:PORT"),
    Setting("token_file", "file", "Accept these tokens.", otherwise="no token"),
    Setting("token_rate", "number", "Limit a caller's questions a second."),
    Setting("tls_cert", "file", "Use this PEM certificate chain.", otherwise="no TLS"),
    Setting("tls_key", "file", "Use this PEM key, with --tls-cert."),
    Setting("tls_client_ca", "file", "Ask callers for certificates by these CAs."),
    Setting("sql", "yes or no", "Answer SQL, too."),
    Setting("max_concurrent", "whole number", "Hold N large questions at once."),
    Setting("max_small", "whole number", "Hold N small questions of a kind."),
    Setting("deadline", "seconds", "Stop a question's work after this."),
    Setting("request_bytes", "bytes", "Limit the size of a question."),
    Setting("answer_bytes", "bytes", "Limit the size of an answer."),
    Setting("ram", "bytes", "Limit RAM, e.g. '2 GB'.", otherwise="half of the machine, and an eighth for codes"),
    Setting("ray", "text", "Answer on this Ray cluster (auto, local).", "ADDRESS"),
    Setting("shard_deadline", "seconds", "Replace a slower shard, with --ray.", own_default=60.0),
    Setting("metrics", "text", "Serve http://HOST:PORT/metrics.", "HOST:PORT"),
    Setting("explore", "text", "Serve pages for a browser, too.", "[HOST:PORT]", bare=EXPLORE),
    Setting("tracing", "yes or no", "Send OpenTelemetry spans.", own_default=False),
    Setting("log", "text", "Log lines of text, or of JSON.", own_default="text", choices=("text", "json")),
)


def options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Gives a command an option for every setting, by `click.option`; what is not given is None."""

    def given(command: Any) -> Any:
        for one in reversed(SETTINGS):
            said = {"help": one.what, "show_default": one.shown_default or None}
            if one.kind == "yes or no":
                command = option(f"{one.flag}/--no-{one.flag[2:]}", one.name, default=None, **said)(command)
            elif one.bare is not None:
                alone: dict[str, Any] = {"is_flag": False, "flag_value": one.bare}
                command = option(one.flag, one.name, metavar=one.placeholder, **said, **alone)(command)
            else:
                command = option(one.flag, one.name, metavar=one.placeholder, **said)(command)
        return command

    return given
