"""What a try writes about its waits: nothing is lost on the way, and nothing is told too early."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import json

from layby.core.commands import AnnotateTask, ExpireWait
from layby.core.model import NEVER, Task
from layby.core.replies import AnnotateData, Reply, ok, refuse
from layby.errors import StoreAway, StoreError
from layby.testing import virtual_test
from layby.worker.annotations import Annotations
from layby.worker.replay import NEW, Record

ID = "run/r:t"
WAIT = f"{ID}.wait.1"
OTHER_WAIT = f"{ID}.wait.2"


class Scene:
    """A try and its worker, and a store that answers when it is told to."""

    def __init__(self, deadlines: dict[str, int] | None = None) -> None:
        self.asked: list[Any] = []
        self.answers: deque[asyncio.Future[Reply]] = deque()
        self.background: list[asyncio.Task[Any]] = []
        self.attempt: Any = SimpleNamespace(
            id=ID,
            version=1,
            loaded=SimpleNamespace(history=SimpleNamespace(text=None)),
            replay=SimpleNamespace(
                remember=lambda *_: None, check_awaited=lambda key, call: (key, call.digest)
            ),
            is_open=True,
            reason=None,
            has_kept=False,
            now=lambda: 1_000,
            send=self.send,
            checked=lambda reply: reply,
            check_fence=lambda _: None,
        )
        host: Any = SimpleNamespace(client=self, spawn=self.spawn, is_loop_ending=lambda: False)
        self.notes = Annotations(host, self.attempt, deadlines or {}, NEW)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.background.append(asyncio.ensure_future(coroutine))
        return self.background[-1]

    async def send(self, request: Any) -> Reply:
        self.asked.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def sent(self) -> AnnotateTask:
        """What was written last, when all that was begun has been sent."""
        await asyncio.sleep(0.01)
        assert isinstance(self.asked[-1], AnnotateTask)
        return self.asked[-1]

    async def answer(self, answer: Reply | StoreError) -> None:
        """To the oldest request that has no answer."""
        future = self.answers.popleft()
        if isinstance(answer, Reply):
            future.set_result(answer)
        else:
            future.set_exception(answer)
        await asyncio.sleep(0.01)


def stored(**deadlines: int) -> Reply:
    text = json.encode(deadlines).decode() if deadlines else None
    return ok(AnnotateData(Task(ID, "poll://any@default", deadlines=text), None))


@virtual_test
async def test_what_is_given_up_during_a_write_comes_with_the_next_one():
    """The answer is about what was written, and nothing else."""
    scene = Scene()
    scene.notes.withdraw("a")
    scene.notes.show(None)
    assert (await scene.sent()).withdrawn == ("a",)
    scene.notes.withdraw("b")
    await scene.answer(stored())
    scene.notes.show(None)
    assert (await scene.sent()).withdrawn == ("b",)


@virtual_test
async def test_what_is_awaited_during_a_write_comes_with_the_next_one():
    scene = Scene()
    scene.notes.begin_promise_wait("a", Record("wait_for", "1"))
    scene.notes.show(None)
    assert (await scene.sent()).awaits == {"a": "1"}
    scene.notes.begin_promise_wait("b", Record("wait_for", "2"))
    await scene.answer(stored())
    scene.notes.show(None)
    assert (await scene.sent()).awaits == {"b": "2"}


@virtual_test
async def test_the_end_of_a_wait_is_sent_until_it_is_stored():
    """Other writes, which were sent later and are stored, do not carry it."""
    scene = Scene()
    scene.notes.carry(WAIT, Record("wait_for", "1"))
    scene.notes.show(None)
    assert (await scene.sent()).record_id == WAIT
    scene.notes.show(None)
    assert (await scene.sent()).record_id is None
    await scene.answer(StoreAway("the store is away"))
    await scene.answer(stored())
    await asyncio.sleep(60)
    assert (await scene.sent()).record_id == WAIT


@virtual_test
async def test_what_is_shown_is_not_sent_again_after_something_newer():
    scene = Scene()
    scene.notes.show(None)
    await scene.sent()
    scene.notes.show(None)
    await scene.sent()
    await scene.answer(StoreAway("the store is away"))
    await scene.answer(stored())
    await asyncio.sleep(60)
    assert len(scene.asked) == 2


@virtual_test
async def test_a_wait_keeps_its_deadline_when_its_body_is_ended_from_outside():
    """The next run of the body continues it, though another part of this one is still shown."""
    scene = Scene({WAIT: 5_000, OTHER_WAIT: 6_000})
    scene.notes.end_wait(OTHER_WAIT)
    scene.attempt.reason = "shutdown"
    scene.notes.end_wait(WAIT)
    scene.notes.show(None)
    assert (await scene.sent()).ended == (OTHER_WAIT,)


@virtual_test
async def test_a_deadline_is_not_written_for_a_body_that_ends():
    """Its task may be somebody else's already."""
    scene = Scene()
    scene.notes.begin_wait(WAIT, 5_000)
    scene.attempt.reason = "lost"
    await asyncio.sleep(1)
    assert scene.asked == []


@pytest.mark.parametrize(
    ("answer", "until"),
    [
        (refuse(404, "no such task"), NEVER),
        (refuse(409, "it is somebody else's"), NEVER),
        (stored(**{WAIT: 5_000}), None),
        (stored(), None),
        (stored(**{WAIT: 9_000}), 9_000),
    ],
)
@virtual_test
async def test_only_the_store_says_that_the_time_of_a_wait_is_up(answer: Reply, until: int | None):
    """Of a task that was taken away nobody here can say: a later run of the body goes on."""
    scene = Scene({WAIT: 5_000})
    asking = asyncio.ensure_future(scene.notes.later_deadline(WAIT, 5_000))
    await asyncio.sleep(0.01)
    assert isinstance(scene.asked[-1], ExpireWait)
    await scene.answer(answer)
    assert await asking == until
