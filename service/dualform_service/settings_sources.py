"""Where settings come from: flags before the environment before a file. All that is wrong is said at once.

No value is shown in what is said: a secret that was put where its file's name belongs stays one. Flags alone need no
library, which would be a fifth of the time in which a server starts; each kind is read by one function either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualform.errors import BadInput
from dualform_service.auth import read_tokens
from dualform_service.config import BadSettings, ServiceConfig
from dualform_service.settings import CONFIG, CONFIG_DEFAULTS, PREFIX, SETTINGS, Setting

_UNREAD = "unread"
"""In the place of a file that cannot be read: what else is wrong is said in spite of it."""
_BY_NAME = {one.name: one for one in SETTINGS}


@dataclass(frozen=True)
class Settings:
    """What all sources say together."""

    values: Mapping[str, Any]
    """By the setting's name; each has one."""
    faults: tuple[BadInput, ...] = ()
    """Settings at fault, which have their defaults in `values`, or of files a name that stands for one."""

    def config(self, memories: int = 1) -> ServiceConfig:
        """Of a server of so many memories. Raises BadInput, or BadSettings for all that is wrong."""
        faults, file = list(self.faults), self.values["token_file"]
        if file is not None and not any(one.field == "token_file" for one in faults):
            try:
                read_tokens(file)
            except BadInput as error:
                faults.append(error)
        if self.values["ray"] is not None and self.values["ram"] is not None:
            faults.append(
                BadInput(
                    "--ram limits one process, but --ray starts several.",
                    hint="Limit them with Ray's own settings, or leave out --ray.",
                    field="ram",
                )
            )
        if self.values["ray"] is not None and memories > 1:
            faults.append(BadInput("--ray serves only one memory.", hint="Serve each at its own port.", field="ray"))
        own = {name: value for name, value in self.values.items() if name in CONFIG_DEFAULTS}
        try:
            config = ServiceConfig(
                certificate=self.values["tls_cert"],
                key=self.values["tls_key"],
                client_authority=self.values["tls_client_ca"],
                **own,
            )
        except BadInput as error:
            raise BadSettings.of((*faults, *BadSettings.each(error))) from None
        if faults:
            raise BadSettings.of(faults)
        return config


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Settings:
    """`flags` as given, by the setting's name; `environment` is this process's, of which the library reads.

    Raises BadInput where the file cannot be read.
    """
    said = _read(file) if file is not None else {}
    unknown = [*_unknown_variables(environment), *_unknown_keys(said, file)]
    given: Mapping[str, Any] = flags
    if file is not None or any(name.startswith(PREFIX) for name in environment):
        given = _merged(flags, {name: value for name, value in said.items() if name in _BY_NAME})
    values, faults = {}, []
    for one in SETTINGS:
        try:
            values[one.name] = one.read(given[one.name]) if one.name in given else one.default
        except ValueError:
            faults.append(_fault(one, flags, environment, file))
            values[one.name] = Path(_UNREAD) if one.kind == "file" else one.default
    return Settings(values, (*unknown, *faults))


def _merged(flags: Mapping[str, Any], said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What flags, the environment and the file (`said`) hold, unread; what none of them has is left away."""
    from pydantic import create_model
    from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

    class Sources(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, hide_input_in_errors=True)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, dict(said))

    of: dict[str, Any] = {one.name: (Any, None) for one in SETTINGS}
    return create_model("Settings", __base__=Sources, **of)(**flags).model_dump(exclude_unset=True)


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"The settings file {file} cannot be read: {error.strerror}.", field=CONFIG) from None
    except UnicodeDecodeError:
        raise BadInput(f"The settings file {file} is not UTF-8.", hint="Save it as UTF-8.", field=CONFIG) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^)]*\)$", str(error))  # the rest may show what the file holds
        raise BadInput(
            f"The settings file {file} is not valid TOML{f' {place[0]}' if place else ''}.",
            hint='Write each setting as address = "127.0.0.1:50051".',
            field=CONFIG,
        ) from None


def _fault(one: Setting, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> BadInput:
    if one.name in flags:
        source = one.flag
    elif environment.get(one.variable):
        source = one.variable
    else:
        source = f"{one.name} in {file}"
    return BadInput(f"{source} {one.wanted}.", field=one.name)


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[BadInput]:
    known = {one.variable for one in SETTINGS} | {PREFIX + CONFIG.upper()}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and environment[name]:
            yield BadInput(f"Unknown variable {name}.", hint=_near(name, known), field=CONFIG)


def _unknown_keys(said: Mapping[str, Any], file: Path | None) -> Iterator[BadInput]:
    for name in said:
        if name not in _BY_NAME:
            yield BadInput(f"Unknown setting {name!r} in {file}.", hint=_near(name, _BY_NAME), field=CONFIG)


def _near(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    return f"Did you mean {near[0]}?" if (near := get_close_matches(name, known, 1)) else ""
