"""One table of errors: class, status and exit code, the same in the code and on the page."""

import pickle
import re
from pathlib import Path

import pytest

import layby
from layby import BlockingRunner, Runner, Workflow, errors, task
from layby.client.transport import StreamRefused, Unreachable
from layby.core.replies import Reply
from layby.errors import (
    Conflict,
    LaybyError,
    NotAllowed,
    NotFound,
    RunnerClosed,
    StoreUnavailable,
    Unavailable,
    UsageError,
    error_for,
)
from layby.server.auth import FORBIDDEN, UNAUTHORIZED, Gate
from tests.helpers.troubled_server import play, served

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (\d) \|", PAGE, re.MULTILINE)


@task
def nothing(context):
    pass


@task
def other(context):
    pass


FLOW = Workflow("flow", tasks=[nothing])
OTHER = Workflow("other", tasks=[other])


def test_classes_that_python_knows_too():
    """Code that catches what Python would raise catches ours."""
    assert issubclass(NotFound, UsageError)
    assert issubclass(NotFound, LookupError)
    assert issubclass(Conflict, UsageError)
    assert not issubclass(NotAllowed, UsageError)
    assert issubclass(Unavailable, ConnectionError)
    assert issubclass(StoreUnavailable, Unavailable)
    assert issubclass(RunnerClosed, Unavailable)
    assert issubclass(RunnerClosed, UsageError)


@pytest.mark.parametrize(
    "error",
    [
        NotFound("there is no run 'a'"),
        Unavailable("nobody answers"),
        StoreUnavailable("the disk is full"),
        RunnerClosed("closed"),
    ],
)
def test_messages_survive_pickling(error: LaybyError):
    """An OSError is particular about its arguments."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_errors_of_the_connection_are_unavailable():
    """With the text and the fields they had before they were OSErrors."""
    unreachable = Unreachable("http://a", "refused", may_have_arrived=True)
    assert isinstance(unreachable, Unavailable)
    assert unreachable.may_have_arrived
    assert str(unreachable).startswith("the server at http://a does not answer (refused)")
    assert StreamRefused(409, "taken").status == 409


def test_every_status_has_one_class():
    """And a status nobody has thought of is an error like any other."""
    told = {status: type(error_for(status, "no")) for status in (400, 401, 403, 404, 409, 503, 500)}
    assert told == {
        400: UsageError,
        401: NotAllowed,
        403: NotAllowed,
        404: NotFound,
        409: Conflict,
        503: Unavailable,
        500: LaybyError,
    }


@pytest.mark.parametrize(("name", "statuses", "exit_code"), ROWS)
def test_the_page_says_what_the_code_does(name: str, statuses: str, exit_code: str):
    """The table is the code's, row by row."""
    found = getattr(layby, name)
    assert tuple(map(int, re.findall(r"\d+", statuses))) == found.statuses
    assert int(exit_code) == found.exit_code


def test_no_class_is_missing_on_the_page():
    """Every class that stands for a status has its row, and all are exported."""
    with_status = {name for name, each in vars(errors).items() if _own_statuses(each)}
    assert with_status | {"LaybyError", "ResultExpired", "RunFailed", "RunCancelled"} == {
        name for name, *_ in ROWS
    }
    assert with_status <= set(layby.__all__)


def _own_statuses(found: object) -> bool:
    return isinstance(found, type) and bool(vars(found).get("statuses"))


async def _mistakes(runner: Runner) -> None:
    for call in (runner.get, runner.cancel, runner.halt, runner.continue_, runner.unschedule):
        with pytest.raises(NotFound):
            await call("nobody")
    await runner.execute(FLOW, run_id="r")
    for call in (runner.cancel, runner.halt, runner.continue_):
        with pytest.raises(NotFound, match="no task 'nothin'; did you mean 'nothing'"):
            await call("r", "nothin")
    with pytest.raises(Conflict, match="belongs to workflow 'flow', not 'other'"):
        await runner.start(OTHER, run_id="r")
    with pytest.raises(Conflict):
        await runner.halt("r", "nothing")
    await runner.schedule(FLOW, "0 9 * * *", id="s")
    with pytest.raises(Conflict, match="use replace to"):
        await runner.schedule(FLOW, "0 10 * * *", id="s")
    with pytest.raises(NotFound, match="did you mean 's'"):
        await runner.unschedule("ss")
    with pytest.raises(UsageError) as bad:
        await runner.get("a:b")
    assert not isinstance(bad.value, NotFound | Conflict)
    await runner.close()
    with pytest.raises(Unavailable, match="closed"):
        await runner.get("r")


def test_mistakes_raise_the_same_class_in_one_process_and_over_http():
    """Unknown, in the way, closed: wherever the engine is."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            await _mistakes(runner)
        async with served() as server, Runner(server.url) as runner:
            await _mistakes(runner)

    play(scene)


@pytest.mark.parametrize("refusal", [UNAUTHORIZED, FORBIDDEN], ids=["401", "403"])
def test_a_token_that_does_not_do(refusal: Reply, monkeypatch: pytest.MonkeyPatch):
    """Not allowed, when the Runner is opened: before anything is done."""
    asked = "identify" if refusal is UNAUTHORIZED else "permit"
    monkeypatch.setattr(Gate, asked, lambda *_: refusal)

    async def scene() -> None:
        async with served() as server:
            with pytest.raises(NotAllowed, match="token"):
                await Runner(server.url).__aenter__()

    play(scene)


def test_a_blocking_runner_raises_the_same():
    """The class crosses its thread."""
    with BlockingRunner("memory:") as runner, pytest.raises(NotFound):
        runner.get("nobody")
