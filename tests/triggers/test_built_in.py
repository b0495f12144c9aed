"""What layby's own triggers refuse where they are made."""

from typing import Any

import pytest

from layby import triggers
from layby.errors import UsageError
from layby.triggers.registry import problem_of
from layby.wire import json_values

SecretNamed = triggers.SecretNamed


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (("Host", "x"), r"writes the header 'Host' itself: leave it out"),
        (("content-length", "1"), r"the header 'content-length' itself"),
        (("a b", "x"), r"cannot send the header 'a b': its name"),
        (("", "x"), r"cannot send the header ''"),
        (("a\r\nb", "x"), r"cannot send the header 'a\\r\\nb'"),
        (("Grüße", "x"), r"cannot send the header 'Grüße'"),
        ((1, "x"), r"cannot send the header 1"),
        (("X-A", "sesame\r\nX-B: c"), r"the value of the header 'X-A': it must be ASCII"),
        (("X-A", "sesame\0"), r"the value of the header 'X-A'"),
        (("X-A", "sesame é"), r"the value of the header 'X-A'"),
        (("X-A", b"sesame"), r"the header 'X-A' of HttpPoll must be a text or SecretNamed, got b"),
        (("X-A", None), r"the header 'X-A' of HttpPoll must be a text"),
        (("X-A", SecretNamed("api", prefix="sesame\n")), r"the value of the header 'X-A'"),
    ],
)
def test_a_header_that_cannot_be_sent(header: tuple[Any, Any], told: str) -> None:
    """It is named; its value, which may be a password, is not shown."""
    headers: dict[Any, Any] = {"X-Good": "fine", header[0]: header[1]}
    with pytest.raises(UsageError, match=told) as refused:
        triggers.HttpPoll("http://h/", headers=headers)
    assert "sesame" not in str(refused.value)


def test_headers_that_can_be_sent() -> None:
    """What a name may be made of is more than letters."""
    headers = {"X-A_b.c": "", "~!": "a b: c", "Authorization": SecretNamed("api", "Bearer ")}
    assert triggers.HttpPoll("http://h/", headers=headers).headers == headers


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"method": "BREW"}, "method of HttpPoll"),
        ({"method": None}, "method of HttpPoll"),
        ({"url": "ftp://h/"}, "needs an http:// or https:// URL, got 'ftp://h/'"),
        ({"url": "/here"}, "needs an http:// or https:// URL"),
        ({"url": "http://h:x/"}, "cannot be parsed"),
    ],
)
def test_what_is_no_request_of_http(arguments: dict[str, Any], told: str) -> None:
    """A method that HTTP does not have, or something that is no URL of the web."""
    with pytest.raises(UsageError, match=told):
        triggers.HttpPoll(**{"url": "http://h/", **arguments})


@pytest.mark.parametrize(
    ("kind", "args", "told"),
    [
        ("HttpPoll", {"url": "http://h/", "headers": {"a b": "x"}}, "the header 'a b'"),
        ("HttpPoll", {"url": "http://h/", "headers": {"X-A": 1}}, "headers"),
        ("HttpPoll", {"url": "http://h/", "method": "BREW"}, "method"),
        ("HttpPoll", {"url": "ftp://h/"}, "needs an http:// or https:// URL"),
        ("HttpPoll", {"url": "http://h/", "more": 1}, "more"),
        ("HttpPoll", {}, '["url"] is missing'),
        ("HttpPoll", [], "expected object"),
        ("FileExists", {"path": "here"}, "an absolute path"),
        ("FileExists", {"path": "/a\0b"}, "path of FileExists must be a path without NUL"),
        ("HttpPoll", {"url": "http://h/", "timeout": 301}, "above 0 and at most 300 s, got 301"),
        ("SqlPoll", {"connection": "c", "query": " "}, "query of SqlPoll must be the SQL to run"),
        ("SqlPoll", {"connection": "c", "query": "q", "timeout": 0}, "timeout of SqlPoll must be"),
    ],
)
def test_what_another_language_may_ask_for(kind: str, args: object, told: str) -> None:
    """The same words as in Python, where it is the class that refuses."""
    assert told in (problem_of(kind, json_values.encode(args)) or "")


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("HttpPoll", triggers.HttpPoll("http://h/", headers={"X-A": "b"}).arguments()),
        ("FileExists", {"path": "/here"}),
        ("OfSomebodyElse", {"url": 7}),
        ("Delay", {"ms": 1}),
    ],
)
def test_what_is_as_it_should_be_or_not_known_here(kind: str, args: object) -> None:
    """Nothing is said against it."""
    assert problem_of(kind, json_values.encode(args)) is None
