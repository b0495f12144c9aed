"""The table of settings, derived from the structs of the configuration.

The flags of `layby serve`, variables, layby.toml, error messages and the documentation are all
made from it: a setting is described once, beside its default.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from layby.errors import nearest_name
from layby.server.config_values import Environ, ValueType


class Setting(Struct, frozen=True):
    """The annotation of a field: which values it accepts, and what it is for."""

    value_type: Any
    """A `ValueType`, which msgspec cannot check since it is a protocol."""
    description: str


class Key(Struct, frozen=True):
    name: str
    """Dotted, as in layby.toml: `push.concurrency`."""
    setting: Setting
    default: Any

    @property
    def value_type(self) -> ValueType:
        return self.setting.value_type

    @property
    def description(self) -> str:
        return self.setting.description

    @property
    def allowed(self) -> str:
        return self.value_type.allowed

    @property
    def variable(self) -> str:
        return "LAYBY_" + self.name.upper().replace(".", "__")

    @property
    def flag(self) -> str:
        """Flags of `layby serve` leave out the prefix `server.`."""
        return "--" + self.name.removeprefix("server.").replace(".", "-").replace("_", "-")

    @property
    def is_hidden(self) -> bool:
        """The value may be a secret: no message repeats it."""
        return getattr(self.value_type, "is_hidden", False)

    def read(self, raw: object, environ: Environ) -> object:
        return self.value_type.read(raw, environ)

    def shown(self, value: Any) -> str:
        """As it would be written, without secrets; empty if there is no value."""
        return "" if value is None or value == () else self.value_type.shown(value)


def keys_of(struct: type[Struct], others: Mapping[str, Setting]) -> Iterator[Key]:
    """Every setting, in the order of the structs; `others` describes fields without one."""
    yield from _keys(struct, "", others)


def _keys(struct: type[Struct], prefix: str, others: Mapping[str, Setting]) -> Iterator[Key]:
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        name = prefix + field.name
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Struct):
            yield from _keys(hint, f"{name}.", others)
        else:
            yield Key(name, _setting(hint) or others[name], field.default)


def _setting(hint: Any) -> Setting | None:
    given: tuple[object, ...] = getattr(hint, "__metadata__", ())
    return next((each for each in given if isinstance(each, Setting)), None)


def closest(name: str, keys: Mapping[str, Key]) -> Key | None:
    """The setting an unknown name may mean: one with the same last part, or a similar one."""
    last = name.rpartition(".")[2]
    alike = [each for each in keys if each.rpartition(".")[2] == last]
    found = alike[0] if alike else nearest_name(name, tuple(keys))
    return keys[found] if found else None
