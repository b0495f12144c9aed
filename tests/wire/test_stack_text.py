"""Where an error was raised, as text: the user's frames, and not ours."""

import asyncio
import concurrent.futures
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.errors import ContextError
from layby.wire.json_values import encode
from layby.wire.stack_text import (
    _MACHINERY,
    _OURS,
    MAX_TRACEBACK_CHARS,
    _frames_of_users,
    bounded,
    stack_text,
)

OURS = f"{_OURS}worker/handle.py"
LOOP = f"{_MACHINERY[0]}tasks.py"
POOL = f"{_MACHINERY[1]}thread.py"
USER = "/home/ada/flows.py"
LIBRARY = "/usr/lib/python3/site-packages/bank/client.py"


def kept(*files: str) -> list[str]:
    frames = [traceback.FrameSummary(file, 1, "f", lookup_line=False) for file in files]
    return [frame.filename for frame in _frames_of_users(frames)]


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ((OURS, USER), [USER]),
        ((OURS, POOL, OURS, USER, LIBRARY), [USER, LIBRARY]),
        ((OURS, USER, OURS, LOOP, OURS), [USER]),
        ((OURS, USER, LOOP, USER), [USER, LOOP, USER]),
        ((OURS, USER, LOOP), [USER, LOOP]),
        ((OURS, USER, OURS, POOL, USER), [USER, USER]),
        ((LOOP, USER), [USER]),
        ((OURS, LOOP), []),
        ((), []),
    ],
)
def test_our_frames_are_left_out(files, shown):
    """And what we call; what user code calls is the user's business."""
    assert kept(*files) == shown


@given(st.lists(st.sampled_from([OURS, LOOP, USER, LIBRARY])))
def test_no_frame_of_users_is_lost(files):
    """In their order, all of them; and none of ours is left."""
    left = kept(*files)
    assert [each for each in left if each != LOOP] == [
        each for each in files if each in (USER, LIBRARY)
    ]


def raised(function, *given) -> Exception:
    try:
        function(*given)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError


def asks_us() -> None:
    encode(object(), "this")


def chained() -> None:
    try:
        asks_us()
    except ContextError as error:
        raise KeyError("later") from error


def grouped() -> None:
    raise ExceptionGroup("both", [raised(asks_us), raised(chained)])


@pytest.mark.parametrize(("function", "places"), [(asks_us, 1), (chained, 2), (grouped, 4)])
def test_in_every_error_of_a_chain_or_group(function, places):
    told = stack_text(raised(function))
    assert "json_values.py" not in told
    assert told.count("in raised") + told.count(f'"{__file__}"') >= places
    assert "in asks_us" in told


def test_an_error_of_ours_that_met_no_user_code_names_no_place():
    """Its message says what to do."""
    assert stack_text(ContextError("too large")) == ""


def test_a_bug_of_ours_shows_all_of_it():
    """Else nobody could find it."""
    error = _without_user_frames(raised(bounded, None))
    assert "stack_text.py" in stack_text(error)


def _without_user_frames(error: Exception) -> Exception:
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def test_a_note_is_told_even_without_a_place():
    error = ContextError("no")
    error.add_note("not retried")
    assert stack_text(error).endswith("ContextError: no\nnot retried")


def test_frames_of_a_thread_begin_with_the_function():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        error = pool.submit(asks_us).exception()
    assert error is not None
    told = stack_text(error).splitlines()
    assert told[1].endswith("in asks_us")


def test_a_loop_that_user_code_runs_is_shown():
    async def inner() -> None:
        raise ValueError("no")

    told = stack_text(raised(lambda: asyncio.run(inner())))
    assert "asyncio" in told
    assert "in inner" in told


@given(st.text(), st.integers(0, 30_000))
def test_it_is_never_long(text, times):
    """The beginning and the end are kept."""
    long = text * times if len(text) * times < 100_000 else text
    short = bounded(long)
    assert len(short) <= MAX_TRACEBACK_CHARS
    assert long.startswith(short[:3_900])
    assert long.endswith(short[-3_900:])


def test_a_long_message_does_not_hide_the_place():
    def fails() -> None:
        raise ValueError("x\n" * 50_000)

    assert "in fails" in stack_text(raised(fails))
