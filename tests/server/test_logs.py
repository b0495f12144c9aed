"""Log lines: for people and for programs, whatever is in them, and never a secret."""

import io
import json
import logging
import subprocess
import sys
import warnings

import pytest

from layby.server import logs
from layby.server.auth_config import new_api_key
from layby.server.server_config import LogConfig, LogFormat, LogLevel

logger = logging.getLogger("layby.server.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(form: LogFormat, level: LogLevel = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(LogConfig(level=level, format=form), stream)
    return stream


def objects(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_for_people_has_time_level_logger_message_and_fields():
    """In this order, the fields bare where that is clear."""
    stream = logged("text")
    logger.warning("a worker came: %s", "w1", extra={"pid": "w1", "held": 3, "why": "a b"})
    time, level, name, rest = stream.getvalue().rstrip("\n").split(maxsplit=3)
    assert (len(time), time[10], time[-1]) == (len("2026-11-15T10:00:00.123Z"), "T", "Z")
    assert (level, name) == ("WARNING", "layby.server.test:")
    assert rest == 'a worker came: w1 pid=w1 held=3 why="a b"'


def test_a_line_for_programs_is_one_object():
    """Fields stand beside the message, as what they are."""
    stream = logged("json")
    logger.info("a worker came", extra={"pid": "w1", "held": 3, "who": None})
    [told] = objects(stream)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "logger": "layby.server.test",
        "message": "a worker came",
        "pid": "w1",
        "held": 3,
        "who": None,
    }


@pytest.mark.parametrize(("stream", "is_json"), [(Terminal(), False), (io.StringIO(), True)])
def test_auto_is_text_on_a_terminal_and_json_elsewhere(stream, is_json):
    """People sit at terminals; files and pipes are read by programs."""
    logs.configure(LogConfig(), stream)
    logger.info("hello")
    assert stream.getvalue().startswith("{") == is_json


def test_the_level_decides_what_is_told():
    """Also for a worker's own modules; libraries that chat are told off."""
    stream = logged("text", "info")
    for name in ("layby.engine", "my_tasks", "uvicorn.error", "asyncio", "watchfiles.main"):
        logging.getLogger(name).debug("no")
        logging.getLogger(name).info("from %s", name)
        logging.getLogger(name).warning("care")
    lines = stream.getvalue()
    assert "no\n" not in lines
    assert [
        name
        for name in ("layby.engine", "my_tasks", "uvicorn", "asyncio", "watchfiles")
        if f"from {name}" in lines
    ] == [
        "layby.engine",
        "my_tasks",
    ]
    assert lines.count("care") == 5


def test_a_second_configuration_replaces_the_first():
    """Nothing is told twice."""
    first = logged("text")
    second = logged("text")
    logger.info("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)


@pytest.mark.parametrize("form", ["text", "json"])
def test_requests_are_told_at_debug_only(form):
    """A busy server does not write a line for each by default."""
    quiet = logged(form)
    logs.log_request("promise.get", 200, 0.0012345)
    assert quiet.getvalue() == ""
    stream = logged(form, "debug")
    logs.log_request("promise.get", 200, 0.0012345)
    if form == "text":
        assert stream.getvalue().endswith(
            "layby.requests: answered kind=promise.get status=200 ms=1.234\n"
        )
    else:
        [told] = objects(stream)
        assert (told["kind"], told["status"], told["ms"]) == ("promise.get", 200, 1.234)
        assert "why" not in told


def test_of_a_refusal_the_reason_is_told():
    """Some SDKs show their users the status only."""
    stream = logged("text", "debug")
    logs.log_request("promise.create", 400, 0.0012345, "Promise ID is required")
    assert stream.getvalue().endswith('status=400 ms=1.234 why="Promise ID is required"\n')


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_failure_comes_with_its_traceback(form):
    """As lines for people, inside the one line for programs."""
    stream = logged(form)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logger.exception("a bug", extra={"kind": "x"})
    told = objects(stream)[0]["traceback"] if form == "json" else stream.getvalue()
    assert told.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "a bug kind=x\nTraceback (most" in told or form == "json"


@pytest.mark.parametrize("form", ["text", "json"])
def test_nobody_can_make_up_lines(form):
    """Ids come from outside: a newline in one stays inside its line, its field and its quotes."""
    stream = logged(form)
    evil = 'x\n2026-11-15T10:00:00Z INFO layby: all is well\x1b[2J\u2028" level=info'
    logger.info("promise %s", evil, extra={"id": evil})
    [line] = stream.getvalue().rstrip("\n").split("\n")
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    if form == "json":
        assert json.loads(line)["id"] == evil
    else:
        assert line.endswith('\\" level=info"')


@pytest.mark.parametrize("form", ["text", "json"])
def test_anything_can_be_attached(form):
    """Half a surrogate, bytes, an object of any class: a log line never fails."""
    stream = logged(form)
    logger.info("odd", extra={"a": "\ud800", "b": b"x", "c": object(), "d": {1: {2}}, "e": (1, 2)})
    assert stream.getvalue().encode(errors="backslashreplace").count(b"\n") == 1
    assert "odd" in stream.getvalue()


def test_odd_texts_reach_a_real_stream():
    """Also where the stream itself knows only ASCII: the line is written, nothing is raised."""
    script = (
        "import logging\n"
        "from layby.server import logs, server_config\n"
        "logs.configure(server_config.LogConfig(format='text'))\n"
        "logging.getLogger('layby').info('é \\ud800', extra={'id': 'ü'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


KEY, _ = new_api_key()
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "secret",
    [
        "postgresql://me:hush@host/db",
        "Authorization: Bearer hush",
        "basic hush",
        f"token {JWT}",
        f"key {KEY}",
    ],
    ids=["url", "bearer", "basic", "jwt", "key"],
)
def test_secrets_are_crossed_out_wherever_they_stand(form, secret):
    """In the message, in a field, inside an object, and in the text of an exception."""
    stream = logged(form)
    failure = ValueError(secret)
    about = {"where": secret, "in": Exception(secret)}
    logger.error("failed: %s", secret, extra=about, exc_info=failure)
    assert "***" in stream.getvalue()
    for hidden in ("hush", JWT, KEY):
        assert hidden not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "piece", ["eyJ-", "eyJa.", "://a:", "://", "bearer ", "basic\t", "layby_-"]
)
def test_whoever_writes_what_is_logged_holds_up_nobody(form, piece):
    """To look for secrets takes time in proportion, not hours for a megabyte."""
    stream = logged(form)
    logger.info("%s", piece * (1_000_000 // len(piece)) + "!")
    assert stream.getvalue().endswith(("!\n", '!"}\n', "***\n", '***"}\n'))


def test_a_kind_of_megabytes_is_not_told_whole():
    """It is what a stranger sent."""
    stream = logged("json", "debug")
    logs.log_request("x" * 1_000_000, 400, 0.0, "y" * 1_000_000)
    [told] = objects(stream)
    assert (told["kind"], told["why"]) == ("x" * logs.MAX_KIND, "y" * logs.MAX_WHY)


@pytest.mark.parametrize("form", ["text", "json"])
def test_fields_named_like_secrets_are_not_told(form):
    """Whatever is in them; others with similar names are."""
    stream = logged(form)
    names = ("token", "api_key", "Authorization", "push_token", "password")
    logger.info("x", extra=dict.fromkeys(names, "hush") | {"author": "me"})
    assert "hush" not in stream.getvalue()
    assert "me" in stream.getvalue()


def test_ordinary_words_are_not_taken_for_secrets():
    """Names of our metrics and URLs without a password stay as they are."""
    text = "layby_oldest_wait_seconds http://host:8001/a@b see layby_request_duration"
    assert logs.without_secrets(text) == text


def test_warnings_of_python_are_log_lines():
    """They would stand on stderr between the lines otherwise."""
    stream = logged("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    [told] = objects(stream)
    assert told["level"] == "warning"
    assert "old ways" in told["message"]
