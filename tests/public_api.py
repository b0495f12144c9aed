"""Everything public, one line each: what public_api.txt holds and test_public_api.py compares.

Names, parameters and defaults, but no annotations: those are written differently from one Python to
the next and name modules that may move, and `make types` looks after them. Nothing here depends on
the Python version, the width of the terminal, or the module that a name comes from.

`python -m tests.public_api` writes the file anew; `make api-snapshot` does just that.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any

import click
import msgspec

from layby.cli.main import cli
from layby.wire.decode import KINDS, FenceRequest

FILE = Path(__file__).with_name("public_api.txt")
MODULES = (
    "layby",
    "layby.errors",
    "layby.executors",
    "layby.graph",
    "layby.testing",
    "layby.triggers",
    "layby.waits",
    "layby.workflow",
)
SYNTAX = frozenset(
    [
        "__aenter__",
        "__aexit__",
        "__aiter__",
        "__anext__",
        "__await__",
        "__bool__",
        "__call__",
        "__contains__",
        "__delitem__",
        "__enter__",
        "__exit__",
        "__getitem__",
        "__iter__",
        "__len__",
        "__next__",
        "__setitem__",
    ]
)
"""Special methods that users write as something else: `await run`, `context["key"]`."""

Api = dict[str, str]
"""What each public thing is, by its full name."""


def public_api() -> Api:
    lines = [*python_names(), *commands(), *wire_kinds()]
    assert len(dict(lines)) == len(lines), "a name stands for two things"
    return dict(sorted(lines))


def written(api: Mapping[str, str]) -> str:
    return "".join(f"{name}: {what}\n" for name, what in api.items())


def read(text: str) -> Api:
    return dict(line.split(": ", 1) for line in text.splitlines())


def differences(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    removed = [f"removed  {name}: {was[name]}" for name in was if name not in now]
    added = [f"added    {name}: {now[name]}" for name in now if name not in was]
    both = [name for name in was if name in now and was[name] != now[name]]
    changed = [f"changed  {name}\n    from {was[name]}\n    to   {now[name]}" for name in both]
    return removed + changed + added


# --- Python ----------------------------------------------------------------------------------


def python_names() -> Iterator[tuple[str, str]]:
    """A thing that has several names is described once, under the first."""
    first_names: dict[int, str] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        for name in getattr(module, "__all__", None) or _classes_of(module):
            full, value = f"{module_name}.{name}", getattr(module, name)
            first = first_names.setdefault(id(value), full)
            yield from [(full, f"is {first}")] if first != full else _described(full, value)


def _classes_of(module: Any) -> list[str]:
    """Where there is no `__all__`: what the module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if inspect.isclass(value):
        yield name, f"class{_bases(value)} {_constructor(value)}"
        members = {key: what for base in reversed(_ours(value)) for key, what in _members(base)}
        yield from ((f"{name}.{key}", what) for key, what in members.items())
    elif callable(value):
        yield name, _function(value)
    else:
        yield name, "value"


def _ours(cls: type[Any]) -> list[type[Any]]:
    return [each for each in cls.__mro__ if each.__module__.startswith("layby")]


def _bases(cls: type[Any]) -> str:
    """What `except` and `isinstance` see, for errors only: other bases are our own business."""
    if not issubclass(cls, BaseException):
        return ""
    return f"({', '.join(base.__name__ for base in cls.__bases__)})"


def _constructor(cls: type[Any]) -> str:
    if getattr(cls, "_is_protocol", False):
        return "protocol"
    if issubclass(cls, BaseException) and not any("__init__" in vars(each) for each in _ours(cls)):
        return "(*args)"
    return _signature(cls)


def _members(cls: type[Any]) -> Iterator[tuple[str, str]]:
    for key, value in vars(cls).items():
        if key == "__init__":
            yield from ((name, "attribute") for name in _set_by(value))
        elif (key in SYNTAX or not key.startswith("_")) and (what := _member(value)):
            yield key, what


def _member(value: Any) -> str | None:
    if isinstance(value, property | cached_property):
        return "property"
    if isinstance(value, classmethod | staticmethod):
        return f"{type(value).__name__} {_function(value.__func__)}"
    if inspect.isfunction(value):
        return _function(value, is_method=True)
    return None  # fields of structs and dataclasses stand in the constructor


def _set_by(init: Any) -> list[str]:
    """Attributes without an underscore that `__init__` gives to self."""
    if not inspect.isfunction(init) or not init.__module__.startswith("layby"):
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    except OSError:  # generated, as by dataclass: its fields stand in the constructor
        return []
    found = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]
    return [name for name in found if not name.startswith("_")]


def _function(function: Any, *, is_method: bool = False) -> str:
    kind = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"{kind} {_signature(function, is_method=is_method)}"


def _signature(function: Any, *, is_method: bool = False) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if is_method else 0 :]
    plain = [_plain(each) for each in parameters]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _plain(parameter: Parameter) -> Parameter:
    default = parameter.default
    if default is not Parameter.empty and not _is_literal(default):
        default = Other()
    return parameter.replace(annotation=Parameter.empty, default=default)


def _is_literal(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_literal, value))
    return value is None or type(value) in {str, bytes, int, float, bool}


class Other:
    """A default whose text would be an address, or the name of something inside."""

    def __repr__(self) -> str:
        return "..."


# --- the command line ------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    yield from _commands_of("$ layby", cli, click.Context(cli, info_name="layby"))


def _commands_of(
    name: str, command: click.Command, context: click.Context
) -> Iterator[tuple[str, str]]:
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    yield name, " ".join(["command", *arguments])
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"{name} {option.opts[-1]}", _option(option)
    if isinstance(command, click.Group):
        for child in [*command.list_commands(context), *getattr(command, "_aliases", {})]:
            found = command.get_command(context, child)
            assert found is not None
            if found.name == child:
                yield from _commands_of(f"{name} {child}", found, click.Context(found, context))
            else:
                yield f"{name} {child}", f"alias of {found.name}"


def _argument(argument: click.Argument) -> str:
    shown = argument.metavar or (argument.name or "").upper()  # as help shows it
    name = shown + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _option(option: click.Option) -> str:
    others = [*option.opts[:-1], *option.secondary_opts]
    words = ["flag" if option.is_flag or option.count else _type(option.type)]
    words += [f"or {other}" for other in others]
    words += ["many"] if option.multiple else []
    words += ["required"] if option.required else []
    words += ["hidden"] if option.hidden else []
    if not option.is_flag and type(option.default) in {str, int, float}:
        words.append(f"= {option.default!r}")
    return " ".join(words)


def _type(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    return kind.name


# --- the wire --------------------------------------------------------------------------------


def wire_kinds() -> Iterator[tuple[str, str]]:
    """A field with `?` may be absent."""
    for kind, struct in {**KINDS, "task.fence": FenceRequest}.items():
        fields = msgspec.structs.fields(struct)
        named = [f"{each.encode_name}{'' if each.required else '?'}" for each in fields]
        yield f"POST / {kind}", f"{{{', '.join(named)}}}"


if __name__ == "__main__":
    FILE.write_text(written(public_api()), encoding="utf-8")
