"""How a server or worker process logs: one line for each event, for people or for programs.

Modules log with the standard library and attach an event's data:
`logger.info("a worker connected", extra={"pid": pid})`. Neither may contain secrets; those that
slip in through a URL, a header or the name of a field are masked.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from layby.server.server_config import LogConfig, LogFormat

requests: Final = logging.getLogger("layby.requests")
"""Every request, at level debug."""

_CHATTY: Final = ("uvicorn", "asyncio", "aiohttp", "concurrent", "watchfiles")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_NAMES: Final = re.compile(
    r"(?i)(^|_)(auth|authorization|token|secret|password|cookie|api_?key)s?(_|$)"
)
MAX_KIND: Final = 100
MAX_WHY: Final = 1_000
_SECRETS: Final = (  # linear in time: whoever writes the text must not slow down the server
    (re.compile(r"(://[^/@:\s]*):[^/@\s]*@"), r"\1:***@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',]+"), r"\1 ***"),
    (re.compile(r"(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]*"), "***"),
    (re.compile(r"\blayby_[\w-]{40,}"), "***"),
)
_BARE: Final = re.compile(r"[^\s\"=\\]+")


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Set up this process; a second call replaces what the first one did."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(config.format, stream))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def log_request(kind: str, status: int, seconds: float, why: str = "") -> None:
    """One line per request at level debug: some SDKs hide why a request was refused."""
    if requests.isEnabledFor(logging.DEBUG):
        about = {"kind": kind[:MAX_KIND], "status": status, "ms": round(seconds * 1000, 3)}
        requests.debug("answered", extra=about | {"why": why[:MAX_WHY]} if why else about)


class TextFormatter(logging.Formatter):
    """`2026-11-15T10:00:00.123Z INFO layby.server: a worker left pid=w1`, then any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        message = _on_one_line(record.getMessage())
        told = " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record))
        head = f"{_time(record)} {record.levelname:<7} {record.name}: {message}"
        line = f"{head} {told}" if told else head
        traceback = _traceback(record, self)
        return without_secrets(f"{line}\n{traceback}" if traceback else line)


class JsonFormatter(logging.Formatter):
    """One object per line, whatever its content; always ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        told |= {
            name: without_secrets(value) if isinstance(value, str) else value
            for name, value in _fields(record)
            if name not in told
        }
        if traceback := _traceback(record, self):
            told["traceback"] = without_secrets(traceback)
        return json.dumps(told, default=lambda value: without_secrets(str(value)))


def without_secrets(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _formatter(form: LogFormat, stream: TextIO | None) -> logging.Formatter:
    is_terminal = stream is not None and stream.isatty()
    is_text = is_terminal if form == "auto" else form == "text"
    return TextFormatter() if is_text else JsonFormatter()


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The attached data, in the given order."""
    for name, value in vars(record).items():
        if name not in _STANDARD:
            yield name, "***" if _SECRET_NAMES.search(name) else value


def _traceback(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """The traceback, and the stack if asked for."""
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return "\n".join(parts)


def _quoted(value: object) -> str:
    """Unquoted where that is unambiguous; a value cannot pose as another field."""
    text = str(value)
    bare = text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    return _on_one_line(bare)


def _on_one_line(text: str) -> str:
    """Text from outside can neither forge log lines nor control the terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
