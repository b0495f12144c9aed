"""What workers tell of their tasks is put into answers and views as it is: so it must be JSON."""

from typing import Any

import pytest
from msgspec import Raw

from layby.core import commands as c
from layby.core.nesting import MAX_DEPTH
from layby.core.validate import (
    MAX_RETRIED_ERROR_CHARS,
    MAX_TOLD_BYTES,
    MAX_WORDS_CHARS,
    problems,
)

VERSION = {"id": "x", "version": 1}
DELAY = c.TriggerSpec("Delay", Raw(b'{"ms":5}'))


def released(history: str) -> c.Command:
    return c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released("x", 1, history=history),))


def every(text: str) -> list[c.Command]:
    """A request for each field that is such a text."""
    return [
        c.AnnotateTask(**VERSION, waiting_on=text),
        c.AnnotateTask(**VERSION, progress=text),
        c.AnnotateTask(**VERSION, history=text),
        c.FinishTask(**VERSION, history=text),
        c.FailTask(**VERSION, history=text),
        c.BlockTask(**VERSION, code="a", why="", history=text),
        c.DeferTask(**VERSION, trigger=DELAY, history=text),
        released(text),
    ]


@pytest.mark.parametrize("text", ["x", "", "{", '{"a":1},"b":2', '{"a":"\\ud800"}', "[1 2]", "NaN"])
def test_what_is_not_json_is_refused(text: str) -> None:
    """It would spoil every answer that it is a part of, and those to others, too."""
    for request in every(text):
        told = problems(request)
        assert told is not None, request
        assert "must be JSON" in told


def test_what_is_json_is_not() -> None:
    for text in ("{}", '{"kind":"x"}', '"told"', '{"tries":[]}', '{"tries":[{"number":1,"a":{}}]}'):
        assert [problems(each) for each in every(text)] == [None] * 8


@pytest.mark.parametrize(
    "tries", ["1", "{}", "[1]", '["x"]', "[null]", '[{"number":"a"}]', '[{"number":1e400}]', "[{}]"]
)
def test_a_history_that_views_could_not_read(tries: str) -> None:
    """`task_tries` has a row for each try: one that has no number would end it for everybody."""
    told = problems(c.FailTask(**VERSION, history=f'{{"tries":{tries}}}'))
    assert told is not None
    assert "tries of history" in told


@pytest.mark.parametrize("name", ["polls", "last_poll_at", "next_poll_at"])
@pytest.mark.parametrize("number", ['"x"', "1.5", "1e3", "true", "[]", "99999999999999999999"])
def test_polls_that_views_could_not_read(name: str, number: str) -> None:
    """`triggers` has a row for each trigger: one with such a number would end it for everybody."""
    told = problems(c.AnnotateTask(**VERSION, waiting_on=f' {{"kind":"x","{name}":{number}}}'))
    assert told is not None
    assert "polls of waitingOn" in told


def test_polls_of_other_forms_are_read_by_nobody() -> None:
    for text in ('{"polls":null}', '{"polls":3,"next_poll_at":5}', '["polls"]', '{"told":"x"}'):
        assert problems(c.AnnotateTask(**VERSION, waiting_on=text)) is None


def test_what_is_nested_too_deeply_for_some_reader() -> None:
    deep = f'{{"a":{"[" * MAX_DEPTH}{"]" * MAX_DEPTH}}}'
    for request in every(deep):
        told = problems(request)
        assert told is not None, request
        assert told.endswith(f"must not be nested deeper than {MAX_DEPTH} levels")


@pytest.mark.parametrize("sub_status", ["Deferred\0", "x" * 1_025])
def test_a_sub_status_that_no_column_can_hold(sub_status: str) -> None:
    """PostgreSQL stores no NUL: the whole batch of others would have to be run again."""
    told = problems(c.AnnotateTask(**VERSION, sub_status=sub_status))
    assert told is not None
    assert "subStatus" in told


@pytest.mark.parametrize("letter", ["x", "é"])
def test_each_text_is_bounded_in_bytes(letter: str) -> None:
    """Whoever names a task loads all that it keeps, and that is not weighed as its param is."""
    most = (MAX_TOLD_BYTES - 2) // len(letter.encode())
    for request in every(f'"{letter * most}"'):
        assert problems(request) is None
    for request in every(f'"{letter * (most + 1)}"'):
        told = problems(request)
        assert told is not None, request
        assert "bytes, more than 65,536: tell less" in told


def test_an_error_is_bounded_while_the_task_keeps_it() -> None:
    """That of the last try is the value of its promise, and weighed as such."""
    error = c.Value(data="x" * (MAX_RETRIED_ERROR_CHARS + 1))
    assert problems(c.FailTask(**VERSION, error=error)) is None
    told = problems(c.FailTask(**VERSION, error=error, retry_in=1))
    assert told is not None
    assert "error has 131,073 characters, more than 131,072" in told


@pytest.mark.parametrize("what", ["by", "reason"])
def test_who_halts_a_task_and_why_is_bounded(what: str) -> None:
    text: Any = {what: "x" * (MAX_WORDS_CHARS + 1)}
    told = problems(c.HaltTask(id="x", **text))
    assert told == f"characters of {what}: 16,385 are more than 16,384"


@pytest.mark.parametrize("what", ["by", "reason"])
def test_who_and_why_are_text_that_can_be_stored(what: str) -> None:
    """What a terminal with another encoding passes on is refused by name, not by the database."""
    told: Any = {what: "caf\udce9"}
    for request in (
        c.WakeTask(id="x", exit_id="e", **told),
        c.ExtendWait(id="x", exit_id="e", **told),
        c.CancelPromise(id="x", **told),
        c.HaltTask(id="x", **told),
        c.AnswerApproval(id="x", **told),
    ):
        assert problems(request) == f"{what} must be valid Unicode"
