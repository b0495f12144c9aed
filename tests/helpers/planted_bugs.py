"""Deliberate bugs: a piece of a module's source is replaced for a while, in the functions it is in.

The functions stay the same objects, so whoever has taken hold of one (a handler, a method) has the
bug too.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


@contextmanager
def planted(module: ModuleType, right: str, wrong: str) -> Generator[None]:
    file = Path(module.__file__ or "")
    source = file.read_text(encoding="utf-8")
    assert right in source, f"{file.name} has changed: {right}"
    codes = dict(_codes(compile(source, file, "exec")))
    changed = dict(_codes(compile(source.replace(right, wrong), file, "exec")))
    different = [name for name, code in changed.items() if code != codes.get(name)]
    innermost = [name for name in different if not any(o.startswith(f"{name}.") for o in different)]
    with ExitStack() as stack:
        for name in innermost:
            stack.enter_context(_with_code(_function(module, name), changed[name]))
        yield


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Of the functions in it, by qualified name."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each.co_qualname, each
            yield from _codes(each)


def _function(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    return found.fget if isinstance(found, property) else found


@contextmanager
def _with_code(function: Any, code: CodeType) -> Generator[None]:
    before, function.__code__ = function.__code__, code
    try:
        yield
    finally:
        function.__code__ = before
