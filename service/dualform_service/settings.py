"""The settings of `dualform serve`. Each is a flag `--max-small`, a variable DUALFORM_SERVE_MAX_SMALL and a key
`max_small` of a TOML file; click asks them in that order. To add a setting, add a line to SETTINGS. One that is named
as a field of ServiceConfig fills that field and has its default.

Errors never show a value: it may be a secret that was given instead of its file's name.

A configuration checks itself: what cannot be served safely is refused when it is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from dualform.errors import BadInput
from dualform.query.bounds import QuestionBounds
from dualform.store.files.ram_budget import bytes_of
from dualform_proto.address import Address, parse_address
from dualform_service.auth import read_tokens

DEFAULT_ADDRESS = "127.0.0.1:50051"
REQUEST_BYTES, ANSWER_BYTES = 4 * 2**20, 64 * 2**20
WHERE_BYTES, WHERE_NODES = 64 * 2**10, 10_000
PATTERNS, PATTERN_LETTERS = 16, 256


@dataclass(frozen=True)
class ServiceConfig:
    address: str = DEFAULT_ADDRESS
    """host:port; port 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """What callers must present as `authorization: Bearer TOKEN`; None asks for none."""
    token_file: Path | None = None
    """File of the tokens that callers may present (auth.py), in place of `token`; read again when it changes."""
    token_rate: float | None = None
    """Questions a second of one caller, as many at once; None: as many as come."""
    certificate: Path | None = None
    """PEM file of the server's certificate chain; with `key`, the server speaks TLS only."""
    key: Path | None = None
    client_authority: Path | None = None
    """PEM file of the authorities whose certificates callers must have, beside a token; None asks for none."""
    sql: bool = False
    """Whether statements of SQL are answered."""
    max_concurrent: int = 4
    """Large questions held at once, of which two are worked on (scheduling.py); one more is refused with Overloaded."""
    max_small: int = 128
    """Small questions held at once that are known to take little, as many others, most of them waiting for a scan that
    they share, and as many look-ups; one more of either is refused likewise."""
    request_bytes: int = REQUEST_BYTES
    """Largest request: a thousand queries of a thousand numbers."""
    answer_bytes: int = ANSWER_BYTES
    """Largest answer."""
    message_seconds: float = 10.0
    """In which a call's message must have come."""
    write_seconds: float = 10.0
    """In which a caller must take an answer, with one more for each MiB; else its connection is shut."""
    calls: int = 1024
    """Calls that there may be at once; one more is refused unread."""
    connection_calls: int = 512
    """Of which on one connection; others wait at their caller's."""
    deadline: float = 600.0
    """Seconds after which work stops for a caller that set no earlier deadline."""
    grace: float = 7.0
    """Seconds that running questions get to finish when the server drains."""
    metrics: str | None = None
    """host:port where metrics are scraped (metrics.py); None for nowhere."""
    explore: str | None = None
    """host:port of pages for browsers, which another process beside this one answers with; None for none."""
    follow: float = 5.0
    """Seconds between looks for newer commits of a training that still runs."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if (self.certificate is None) != (self.key is None):
            raise BadInput(
                "TLS needs a certificate and its key, and only one was given.",
                hint="Give both --tls-cert and --tls-key.",
                field="certificate" if self.certificate is None else "key",
            )
        if self.client_authority is not None and self.certificate is None:
            raise BadInput(
                "--tls-client-ca needs TLS, but the server has no certificate.",
                hint="Give --tls-cert and --tls-key, too.",
                field="client_authority",
            )
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise BadInput(
                "token must be printable ASCII that is not empty.", hint="Make one: dualform token NAME", field="token"
            )
        if self.token is not None and self.token_file is not None:
            raise BadInput("token and token_file cannot be combined.", hint="Give one of them.", field="token")
        if self.client_authority is not None and self.explore is not None:
            raise BadInput(
                "--explore cannot be combined with --tls-client-ca: its pages have no certificate.",
                hint="Serve the pages separately: dualform explore HOST:PORT --tls-cert FILE --tls-key FILE.",
                field="explore",
            )
        for name, address in (("address", self.address), ("metrics", self.metrics), ("explore", self.explore)):
            if address is not None:
                self._check_address(name, address)

    def _check_numbers(self) -> None:
        """Every field that is a number must bound something; only the grace may be none."""
        for own in fields(self):
            value = getattr(self, own.name)
            if own.type == "int" and not (isinstance(value, int) and value > 0):
                raise BadInput(f"{own.name} must be a whole number above 0, not {value}.", field=own.name)
            if own.type in ("float", "float | None") and value is not None:
                enough = value >= 0 if own.name == "grace" else value > 0
                if not (enough and value < inf):
                    least = "of at least" if own.name == "grace" else "above"
                    raise BadInput(f"{own.name} must be a finite number {least} 0, not {value}.", field=own.name)

    def _check_address(self, name: str, address: str) -> None:
        try:
            loopback = parse_address(address).loopback
        except BadInput as error:
            error.field = name
            raise
        if not loopback and (not self.asks_for_tokens or self.certificate is None):
            raise BadInput(
                f"{address} can be reached from other machines, which needs both TLS and a token.",
                hint="Give --tls-cert, --tls-key and --token-file, or listen on 127.0.0.1.",
                field=name,
            )

    @property
    def scheme(self) -> str:
        """Of addresses where metrics are scraped."""
        return "http" if self.certificate is None else "https"

    @property
    def asks_for_tokens(self) -> bool:
        return self.token is not None or self.token_file is not None

    @property
    def of_questions(self) -> QuestionBounds:
        """Of each question."""
        return QuestionBounds(
            answer_bytes=self.answer_bytes,
            where_bytes=WHERE_BYTES,
            where_nodes=WHERE_NODES,
            patterns=PATTERNS,
            pattern_letters=PATTERN_LETTERS,
        )

    @property
    def listen(self) -> Address:
        return parse_address(self.address)


PREFIX = "DUALFORM_SERVE"
"""click's auto_envvar_prefix. Only the server uses it, so unknown variables can be refused."""
EXPLORE = "127.0.0.1:50080"
"""The address of --explore without one."""
DEFAULTS = {field.name: field.default for field in fields(ServiceConfig)}


def _byte_count(said: str | int) -> int:
    return bytes_of(int(said) if isinstance(said, str) and said.strip().isdecimal() else said)


class Kind(NamedTuple):
    type: click.ParamType[Any]
    metavar: str | None
    wanted: str


TEXT = Kind(click.STRING, "TEXT", "must not be empty")
COUNT = Kind(click.IntRange(min=1), "N", "must be a whole number above 0")
NUMBER = Kind(click.FloatRange(0, min_open=True), "N", "must be a number above 0")
SECONDS = NUMBER._replace(metavar="SECONDS")
BYTES = Kind(
    click.types.FuncParamType(_byte_count),
    "BYTES",
    'must be a number of bytes above 0, or a text such as "2 GB"',
)
FILE = Kind(click.Path(exists=True, dir_okay=False, path_type=Path), "FILE", "must name a file that can be read")
YES_NO = Kind(click.BOOL, None, "must be true or false")
LOG = Kind(click.Choice(["text", "json"]), None, "must be text or json")


class Setting(click.Option):
    def __init__(
        self,
        name: str,
        kind: Kind,
        help: str,
        metavar: str | None = None,
        default: Any = None,
        without: str = "",
        **more: Any,
    ) -> None:
        """`default`: if it is not a field of ServiceConfig. `without`: for --help, if the default is not a value."""
        default = DEFAULTS.get(name, default)
        self.kind, self.flag, self.variable = kind, "--" + name.replace("_", "-"), f"{PREFIX}_{name.upper()}"
        flags = self.flag if kind is not YES_NO else f"{self.flag}/--no-{self.flag[2:]}"
        shown = without or _shown(default) or None
        more |= {"type": kind.type, "metavar": metavar or kind.metavar, "default": default, "show_default": shown}
        super().__init__([flags, name], help=help, **more)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            if value == "":
                raise ValueError
            return super().type_cast_value(ctx, value)
        except (click.BadParameter, ValueError):
            raise BadInput(f"{self._source(ctx)} {self.kind.wanted}.", field=self.name or "") from None

    def _source(self, context: click.Context) -> str:
        source = context.get_parameter_source(self.name or "")
        if source == ParameterSource.DEFAULT_MAP:
            return f"{self.name} in {context.params['config']}"
        return self.variable if source == ParameterSource.ENVIRONMENT else self.flag


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default is None or isinstance(default, str):
        return default or ""
    return f"{default / 2**20:g} MiB" if default >= 2**20 else f"{default:g}"


SETTINGS = (
    Setting("address", TEXT, "Listen here.", "HOST:PORT"),
    Setting("token_file", FILE, "Accept these tokens.", without="no token"),
    Setting("token_rate", NUMBER, "Limit a caller's questions a second."),
    Setting("tls_cert", FILE, "Use this PEM certificate chain.", without="no TLS"),
    Setting("tls_key", FILE, "Use this PEM key, with --tls-cert."),
    Setting("tls_client_ca", FILE, "Ask callers for certificates by these CAs."),
    Setting("sql", YES_NO, "Answer SQL, too."),
    Setting("max_concurrent", COUNT, "Hold N large questions at once."),
    Setting("max_small", COUNT, "Hold N small questions of a kind."),
    Setting("deadline", SECONDS, "Stop a question's work after this."),
    Setting("request_bytes", BYTES, "Limit the size of a question."),
    Setting("answer_bytes", BYTES, "Limit the size of an answer."),
    Setting("ram", BYTES, "Limit RAM, e.g. '2 GB'.", without="half of the machine, and an eighth for codes"),
    Setting("ray", TEXT, "Answer on this Ray cluster (auto, local).", "ADDRESS"),
    Setting("shard_deadline", SECONDS, "Replace a slower shard, with --ray.", default=60.0),
    Setting("metrics", TEXT, "Serve http://HOST:PORT/metrics.", "HOST:PORT"),
    Setting("explore", TEXT, "Serve pages for a browser, too.", "[HOST:PORT]", is_flag=False, flag_value=EXPLORE),
    Setting("tracing", YES_NO, "Send OpenTelemetry spans.", default=False),
    Setting("log", LOG, "Log lines of text, or of JSON.", default="text"),
)


def _read_file(context: click.Context, option: click.Parameter, file: Path | None) -> Path | None:
    """Makes the file's settings the defaults. Raises BadInput for unknown names."""
    variables = {one.variable for one in SETTINGS} | {f"{PREFIX}_CONFIG"}
    for name in sorted(os.environ):
        if name.startswith(f"{PREFIX}_") and name not in variables and os.environ[name]:
            raise BadInput(f"Unknown variable {name}.", hint=_near(name, variables), field="config")
    if file is None:
        return None
    said, names = _parsed(file), [one.name or "" for one in SETTINGS]
    for name, value in said.items():
        if name not in names:
            raise BadInput(f"Unknown setting {name!r} in {file}.", hint=_near(name, names), field="config")
        if isinstance(value, list | dict):
            raise BadInput(f"{name} in {file} must be a single value.", field=name)
    # As text, which is read as flags are: 2.5 is not a whole number.
    context.default_map = {name: str(value) for name, value in said.items()}
    return file


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"The settings file {file} cannot be read: {error.strerror}.", field="config") from None
    except UnicodeDecodeError:
        raise BadInput(f"The settings file {file} is not UTF-8.", hint="Save it as UTF-8.", field="config") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^)]*\)$", str(error))  # the rest may show what the file holds
        raise BadInput(
            f"The settings file {file} is not valid TOML{f' {place[0]}' if place else ''}.",
            hint='Write each setting as address = "127.0.0.1:50051".',
            field="config",
        ) from None


def _near(name: str, known: Iterable[str]) -> str:
    return f"Did you mean {near[0]}?" if (near := get_close_matches(name, known, 1)) else ""


def options() -> list[click.Parameter]:
    """Those of a command whose auto_envvar_prefix is PREFIX: --config, and every setting."""
    config = click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        is_eager=True,
        callback=_read_file,
        metavar="FILE",
        show_default=f"${PREFIX}_CONFIG",
        help="Read settings from a TOML file.",
    )
    return [config, *SETTINGS]


def service_config(values: Mapping[str, Any], memories: int = 1) -> ServiceConfig:
    """The configuration of a server of so many memories. Raises BadInput."""
    if values["ray"] is not None and values["ram"] is not None:
        hint = "Limit them with Ray's own settings, or leave out --ray."
        raise BadInput("--ram limits one process, but --ray starts several.", hint=hint, field="ram")
    if values["ray"] is not None and memories > 1:
        raise BadInput("--ray serves only one memory.", hint="Serve each at its own port.", field="ray")
    if values["token_file"] is not None:
        read_tokens(values["token_file"])
    own = {name: value for name, value in values.items() if name in DEFAULTS}
    tls = {"certificate": "tls_cert", "key": "tls_key", "client_authority": "tls_client_ca"}
    return ServiceConfig(**own, **{field: values[name] for field, name in tls.items()})
