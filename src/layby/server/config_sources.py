"""The sources of settings: each yields keys with raw values, and names them in its own terms."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from layby.errors import UsageError
from layby.server.config_keys import Key, closest
from layby.server.config_values import Environ, InvalidValue

NAME: Final = "layby.toml"
_PREFIX: Final = "LAYBY_"
_OTHER_VARIABLES: Final = ("LAYBY_URL", "LAYBY_TOKEN", "LAYBY_PORT_", "LAYBY_SERVICE_")
"""Variables of clients, and those Kubernetes sets for a service named layby."""

Keys = Mapping[str, Key]
Found = Iterator["GivenSetting | UsageError"]
"""Unknown names are yielded as errors, so that all of them can be reported at once."""


class GivenSetting(Struct, frozen=True):
    """A setting that was given; `where` names it as its source does."""

    key: Key
    raw: Any
    where: str

    def value(self, environ: Environ) -> object:
        """The value, or an error that names the source, setting, value and what is allowed."""
        try:
            return self.key.read(self.raw, environ)
        except UsageError as error:
            return UsageError(f"{self.where}: {self.key.name}: {error}")
        except InvalidValue:
            shown = "the given value" if self.key.is_hidden else repr(self.raw)
            why = f"{self.key.name} cannot be {shown}"
            return UsageError(f"{self.where}: {why}: give {self.key.allowed}")


def from_file(file: Path | None, cwd: Path, keys: Keys) -> Found:
    """`layby.toml` may be missing; a file named by the user may not."""
    path = cwd / NAME if file is None else file
    if file is None and not path.exists():
        return
    yield from _flattened(_read_toml(path), "", str(path), keys)


def from_environment(environ: Environ, keys: Keys) -> Found:
    by_variable = {key.variable: key for key in keys.values()}
    for variable, raw in sorted(environ.items()):
        if variable in by_variable:
            yield GivenSetting(by_variable[variable], raw, variable)
        elif variable.startswith(_PREFIX) and "__" in variable:
            meant = _closest(variable, keys)
            hint = _did_you_mean(meant and meant.variable)
            yield UsageError(f"{variable}: there is no such setting{hint}")


def from_flags(flags: Mapping[str, object], keys: Keys) -> Found:
    """None and an empty list mean that the flag was not given."""
    for name, raw in flags.items():
        if name not in keys:
            yield UsageError(f"there is no setting {name}{_hint(name, keys)}")
        elif raw is not None and raw not in ((), []):
            yield GivenSetting(keys[name], raw, keys[name].flag)


def ignored_variables(environ: Environ, keys: Keys) -> Iterator[str]:
    """Warnings for variables that look like settings but are not.

    Only names with `__` are refused: others may have another origin (Kubernetes sets LAYBY_PORT
    for a service named layby).
    """
    known = {key.variable for key in keys.values()}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or "__" in variable or variable in known:
            continue
        meant = _closest(variable, keys)
        if meant is not None and not variable.startswith(_OTHER_VARIABLES):
            yield f"{variable} is not a setting and was ignored: did you mean {meant.variable}?"


def _closest(variable: str, keys: Keys) -> Key | None:
    return closest(variable.removeprefix(_PREFIX).lower().replace("__", "."), keys)


def _hint(name: str, keys: Keys) -> str:
    meant = closest(name, keys)
    return _did_you_mean(meant and meant.name)


def _did_you_mean(meant: str | None) -> str:
    return f": did you mean {meant}?" if meant else ""


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: this is not TOML: {error}") from error


def _flattened(table: dict[str, Any], prefix: str, where: str, keys: Keys) -> Found:
    sections = {name.rpartition(".")[0] for name in keys}
    for field, raw in table.items():
        name = prefix + field
        if name in keys:
            yield GivenSetting(keys[name], raw, where)
        elif isinstance(raw, dict) and raw:
            yield from _flattened(cast("dict[str, Any]", raw), f"{name}.", where, keys)
        elif name in sections and raw != {}:
            yield UsageError(f"{where}: {name} is a table: write [{name}]")
        elif name not in sections:
            yield UsageError(f"{where}: there is no setting {name}{_hint(name, keys)}")
