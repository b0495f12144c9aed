"""The name of a workflow's code: a digest of the source files that define its tasks.

The same files have the same name on every machine: contents count, with lines ended by a newline,
and neither paths nor times do. Where a function has no source file (`python -c`, an interactive
session, only compiled files), its compiled code counts, which differs between versions of Python.
"""

import functools
import hashlib
import inspect
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

from layby.core.validate import MAX_CODE_CHARS
from layby.errors import UsageError
from layby.workflow.workflow import Workflow

DIGITS: Final = 12


def name_of(flow: Workflow) -> str:
    """A digest of the code of all its tasks."""
    return name_of_code(each.function for each in flow.tasks.values())


def name_of_code(functions: Iterable[Any]) -> str:
    """A digest of the code of all these functions."""
    return _digest("\n".join(sorted({_digest_of(_function(each)) for each in functions})))


def check_version(version: object) -> str:
    """A name that somebody gave to the code of a Runner."""
    if not isinstance(version, str) or not version.strip() or "\0" in version:
        raise UsageError(f"version of a Runner must be a non-empty string, got {version!r}")
    if len(version) > MAX_CODE_CHARS:
        raise UsageError(
            f"version of a Runner is too long: at most {MAX_CODE_CHARS} characters, got "
            f"{version[:40]!r}…"
        )
    return version


def _digest_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return _digest(f"{getattr(function, '__module__', '')}.{function!r}")
    source = _source(function, code.co_filename)
    return _digest("\n".join(_compiled(code))) if source is None else source


def _source(function: Any, file: str) -> str | None:
    """The digest of the file; None if there is none."""
    try:
        known = Path(file).stat()
    except OSError:
        return _digest_lines(linecache.getlines(file, getattr(function, "__globals__", None)))
    return _digest_of_file(file, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=1024)
def _digest_of_file(file: str, *_: int) -> str | None:
    """Read again only if it has changed."""
    linecache.checkcache(file)
    return _digest_lines(linecache.getlines(file))


def _digest_lines(lines: list[str]) -> str | None:
    return _digest("\n".join(line.rstrip("\r\n") for line in lines)) if lines else None


def _compiled(code: CodeType) -> Iterator[str]:
    """All that says what it does, and nothing that says where it stands."""
    yield code.co_code.hex()
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _compiled(each)
        elif isinstance(each, frozenset):  # their order differs from process to process
            yield repr(sorted(map(repr, cast("frozenset[object]", each))))
        else:
            yield repr(each)


def _function(function: Any) -> Any:
    """What a partial, a method or a decorated function comes down to."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if hasattr(function, "__code__") or not callable(function):
        return function
    kind = cast("Any", type(function))
    return kind.__call__


def is_digest(code: str) -> bool:
    """Whether a code looks like one that nobody has named."""
    return len(code) == DIGITS and set(code) <= set("0123456789abcdef")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
