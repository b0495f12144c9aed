"""Two engines on one database: nothing is lost, whatever meets whatever.

With the row locks taken away the races below are lost: see `test_two_engines_unlocked`.
"""

import random
import threading
from itertools import count
from typing import Any, cast

import psycopg
import pytest

from layby.core import commands as c
from layby.core.model import FAR, Message
from layby.core.ticks import Tick
from layby.engine.items import NOT_BEGUN, Allowance, Item
from layby.engine.observer import Commit
from layby.errors import StoreBusy, StoreUnavailable
from tests.helpers import requests as r
from tests.helpers.two_engines import PATIENCE_S, sharing, submit, submit_at_once, told

ROUNDS = 60


def test_a_wait_that_meets_its_settlement_is_not_lost() -> None:
    """One registers the wait, the other settles: the task resumes, or is told at once."""
    with sharing() as shared:
        ids = [f"{number:03}" for number in range(ROUNDS)]
        one = shared.engines[0]
        for future in submit(one, [r.promise(f"p{each}") for each in ids]):
            assert future.result(PATIENCE_S).is_ok
        for future in submit(one, [r.claimed(f"t{each}", ttl=10**9) for each in ids]):
            assert future.result(PATIENCE_S).is_ok
        waits = [r.suspend(f"t{each}", 1, f"p{each}") for each in ids]
        settlements = [r.settle(f"p{each}") for each in ids]
        random.Random(1).shuffle(settlements)
        replies = shared.together(waits, settlements)
        assert {reply.status for reply in replies[1]} == {200}
        assert {reply.status for reply in replies[0]} <= {200, 300}
        state = shared.check()
        for each, reply in zip(ids, replies[0], strict=True):
            task = state.tasks[f"t{each}"]
            told = "acquired" if reply.status == 300 else "pending"
            assert task.state == told, f"{task}: its promise is settled"
        assert all(wait.is_read for wait in state.waits.values())


def test_a_wait_is_registered_while_its_promise_is_settled() -> None:
    """The settlement waits until the wait is there, and then resumes the task."""
    with sharing() as shared:
        one, _ = shared.engines
        assert one.call(r.promise("p")).is_ok
        assert one.call(r.claimed("t", ttl=10**9)).is_ok
        waiting, settling = shared.meeting(r.suspend("t", 1, "p"), r.settle("p"))
        assert (waiting.status, settling.status) == (200, 200)
        assert shared.check().tasks["t"].state == "pending"


def test_a_promise_is_settled_while_a_wait_is_registered() -> None:
    """The other way round: who comes to wait is told that there is nothing to wait for."""
    with sharing() as shared:
        one, _ = shared.engines
        assert one.call(r.promise("p")).is_ok
        assert one.call(r.claimed("t", ttl=10**9)).is_ok
        settling, waiting = shared.meeting(r.settle("p"), r.suspend("t", 1, "p"))
        assert (settling.status, waiting.status) == (200, 300)
        assert shared.check().tasks["t"].state == "acquired"


def test_two_siblings_end_while_each_other_ends() -> None:
    """The hop of the second is locked: it is replayed, and counts from what the first has left."""
    with sharing() as shared:
        one, _ = shared.engines
        assert one.call(r.run(a="", b="", z="a b")).is_ok
        assert len(told(one, r.take(2, ttl=10**9)).claims) == 2
        replies = shared.meeting(r.finish("run/a:a"), r.finish("run/a:b"))
        assert {reply.status for reply in replies} == {200}
        node = shared.check().tasks["run/a:z"]
        assert (node.waits_left, node.state) == (0, "pending")


def test_a_promise_is_born_while_another_engine_creates_it() -> None:
    """One finds what the other has created, though it was not there when it looked."""
    with sharing() as shared:
        slow, quick = r.promise("p", 10**15), r.promise("p", 2 * 10**15)
        found, made = shared.meeting(slow, quick)
        assert made.data.promise == found.data.promise
        assert made.data.promise.timeout_at == 2 * 10**15


def test_a_placeholder_is_adopted_while_somebody_waits_for_it() -> None:
    """It stays the same row, so who has locked it, or waits for that, does not lose it."""
    with sharing() as shared:
        one, _ = shared.engines
        assert one.call(c.EnsurePromise(id="p")).is_ok
        assert one.call(r.claimed("t", ttl=10**9)).is_ok
        adopted, waiting = shared.meeting(r.promise("p"), r.suspend("t", 1, "p"))
        assert (adopted.status, waiting.status) == (200, 200)
        state = shared.check()
        assert not state.promises["p"].placeholder
        assert list(state.waits) == [("p", "t")]


def test_a_task_is_halted_while_its_holder_takes_another() -> None:
    """Both change what the holder holds, and neither count is lost."""
    with sharing() as shared:
        one, _ = shared.engines
        for name in ("a", "b"):
            assert one.call(r.run(f"run/{name}", a="")).is_ok
        assert len(told(one, r.take(1, ttl=10**9)).claims) == 1
        halted, taken = shared.meeting(c.HaltTask(id="run/a:a"), r.take(1, ttl=10**9))
        assert halted.status == 200
        assert [each.task.id for each in taken.data.claims] == ["run/b:a"]
        shared.check()


def test_who_waited_for_a_lock_is_told_of_what_was_born_meanwhile() -> None:
    """A task is claimed with all of its branch, in which a third engine has created something."""
    with sharing(engines=3) as shared:
        one, _, three = shared.engines
        assert one.call(r.claimed("t", ttl=10**9, branch="b")).is_ok
        released, claim = shared.meeting(
            c.ReleaseTask(id="t", version=1),
            r.acquire("t", 1),
            lambda: told(three, r.promise("x", branch="b")),
        )
        assert (released.status, claim.status) == (200, 200)
        assert [each.id for each in claim.data.preload] == ["x"]


@pytest.mark.parametrize("beside", [(), (c.ReleaseTask(id="t", version=9),)])
def test_two_tasks_are_born_into_one_branch(beside) -> None:
    """Each is told of the others in its branch, so one of the two is told of the other.

    Neither has a row that the other could find locked. Whether the second engine is asked about
    the first task as well makes no difference.
    """
    with sharing() as shared:
        one, two = (r.claimed(name, ttl=10**9, branch="b") for name in ("t", "u"))
        first, second = shared.meeting(one, two, beside=beside)
        assert (first.status, second.status) == (200, 200)
        assert [[each.id for each in reply.data.preload] for reply in (first, second)] == [
            [],
            ["t"],
        ]


def test_whoever_reads_a_branch_agrees_with_those_born_into_it() -> None:
    """Of two tasks, one is told of the other: by its birth, or when somebody claims it later.

    One is born claimed, and told of its branch; the other is created by somebody who is told
    nothing, and claimed before the first one is stored, if it can be.
    """
    with sharing(engines=3) as shared:
        three, claims = shared.engines[2], []

        def claim() -> None:
            claims.append(three.call(r.acquire("t", 0)))

        born, created = shared.meeting(
            r.claimed("u", ttl=10**9, branch="b"), r.target("t", branch="b"), claim
        )
        claim()
        claimed = next(each for each in claims if each.is_ok)
        assert (born.status, created.status) == (200, 200)
        told_of = {each.id for reply in (born, claimed) for each in reply.data.preload}
        assert told_of in ({"t"}, {"u"}), told_of


def test_a_run_is_born_between_a_look_at_it_and_the_look_at_the_queue() -> None:
    """Who finds its task in the queue finds its root as well: both were born together."""
    with sharing() as shared:
        one, two = shared.engines
        locked: Any = cast("Any", one._store)._locked
        ready = locked.ready

        def born_meanwhile(seen: Any, at: Any, *more: Any) -> Any:
            locked.ready = ready
            told(two, r.run(a=""))
            in_the_same_millisecond = at | {"now": at["now"] + 60_000}
            return ready(seen, in_the_same_millisecond, *more)

        locked.ready = born_meanwhile
        told(two, r.run("run/0", a=""))
        found: Any = one.call(r.run(with_take=r.take(2, ttl=10**9), a=""))
        assert (found.status, found.data.created) == (200, False)
        shared.check()


def test_siblings_that_end_at_once_count_each_other() -> None:
    """Halves of a fan-in end on two engines: the last one, whichever that is, wakes the node."""
    with sharing() as shared:
        for number in range(6):
            siblings = [f"s{at:02}" for at in range(40)]
            after = {**dict.fromkeys(siblings, ""), "z": " ".join(siblings)}
            run_id = f"run/{number}"
            one, _ = shared.engines
            assert one.call(r.dag(after, run_id)).is_ok
            taken = told(one, r.take(50, pid=f"p{number}")).claims
            assert len(taken) == 40 + (number > 0)  # and the node of the run before
            ends = [r.finish(f"{run_id}:{each}") for each in siblings]
            replies = shared.together(ends[::2], ends[1::2])
            assert {reply.status for each in replies for reply in each} == {200}
            node = shared.check().tasks[f"{run_id}:z"]
            assert (node.waits_left, node.state) == (0, "pending")


def test_awaiters_in_any_order_do_not_deadlock() -> None:
    """Each engine settles what the other's tasks wait for, in opposite orders of their ids."""
    with sharing() as shared:
        one, _ = shared.engines
        ids = [f"{number:02}" for number in range(30)]
        for each in ids:
            for name in ("a", "z"):
                assert one.call(r.promise(f"{name}{each}")).is_ok
            for name in ("k", "m"):
                assert one.call(r.claimed(f"{name}{each}", ttl=10**9)).is_ok
                assert one.call(r.suspend(f"{name}{each}", 1, f"a{each}", f"z{each}")).is_ok
        forward = [r.settle(f"a{each}") for each in ids]
        backward = [r.settle(f"z{each}") for each in reversed(ids)]
        replies = shared.together(forward, backward)
        assert {reply.status for each in replies for reply in each} == {200}
        state = shared.check()
        tasks = [task for task in state.tasks.values() if task.id[0] in "km"]
        assert {(task.state, len(task.resumes)) for task in tasks} == {("pending", 2)}


def test_a_task_is_taken_once() -> None:
    """Many takes on both engines: each task goes to one of them, and none stays behind."""
    with sharing() as shared:
        one, _ = shared.engines
        for number in range(120):
            assert one.call(r.run(f"run/{number:03}", a="")).is_ok
        takes = [[r.take(4, pid=pid, ttl=10**9) for _ in range(25)] for pid in "xy"]
        replies = shared.together(*takes)
        answers = [reply.data for each in replies for reply in each]
        claims = [claim.task.id for answer in answers for claim in answer.claims]
        assert len(claims) == len(set(claims))
        left = told(one, r.take(200, pid="last", ttl=10**9)).claims
        assert sorted([*claims, *(each.task.id for each in left)]) == [
            f"run/{number:03}:a" for number in range(120)
        ]
        shared.check()


def test_a_take_waits_for_a_task_that_another_engine_makes_ready() -> None:
    """It hears of it; it need not look again."""
    with sharing() as shared:
        one, two = shared.engines
        (waiting,) = submit(two, [r.take(1, wait_ms=60_000)])
        assert one.call(r.run(a="")).is_ok
        assert [each.task.id for each in waiting.result(PATIENCE_S).data.claims] == ["run/a:a"]


def test_a_watch_hears_of_a_settlement_elsewhere() -> None:
    with sharing() as shared:
        one, two = shared.engines
        assert one.call(r.promise("p")).is_ok
        (watching,) = submit(two, [c.WatchPromise(id="p")])
        assert two.call(c.GetPromise(id="p")).is_ok  # so that it is held by now
        assert one.call(r.settle("p")).is_ok
        assert watching.result(PATIENCE_S).data.promise.state == "resolved"


def test_what_was_not_announced_is_found_by_looking(monkeypatch) -> None:
    """A lost NOTIFY costs a second, for takes and for watches."""
    with sharing() as shared:
        one, two = shared.engines
        monkeypatch.setattr(one._store, "announce", lambda _: None)
        assert one.call(r.promise("p")).is_ok
        watching, taking = submit(two, [c.WatchPromise(id="p"), r.take(1, wait_ms=60_000)])
        assert two.call(c.GetPromise(id="p")).is_ok
        assert one.call(r.settle("p")).is_ok
        assert one.call(r.run(a="")).is_ok
        assert watching.result(PATIENCE_S).data.promise.state == "resolved"
        assert len(taking.result(PATIENCE_S).data.claims) == 1


def test_a_second_engine_ends_nobody() -> None:
    """Opening a shared database says nothing about those who use it."""
    with sharing(engines=1) as shared:
        (one,) = shared.engines
        assert one.call(r.take(1, pid="p", ttl=10**9, embedded=True)).is_ok
        shared.add()
        (holder,) = shared.dump().holders.values()
        assert holder.is_alive


def test_a_schedule_is_created_once() -> None:
    """Two engines create different schedules of one name at once: one is refused, or both agree."""
    with sharing() as shared:
        for number in range(20):
            made = [r.nightly(id=f"s{number}", cron=f"{at} 3 * * *") for at in (0, 1)]
            (first,), (second,) = shared.together([made[0]], [made[1]])
            assert sorted((first.status, second.status)) == [200, 409]
            kept = (first if first.is_ok else second).data.schedule
            assert shared.dump().schedules[f"s{number}"] == kept


def test_a_pid_has_one_living_holder() -> None:
    """Two incarnations register at once: one of them ends the other."""
    with sharing() as shared:
        for number in range(20):
            takes = [r.take(0, pid=f"p{number}", incarnation=each, ttl=10**9) for each in "ab"]
            shared.together([takes[0]], [takes[1]])
            holders = [x for x in shared.dump().holders.values() if x.pid == f"p{number}"]
            assert sorted(each.standing for each in holders) == ["alive", "lost"]
        shared.check()


def test_deadlines_pass_once() -> None:
    """Both engines see them; each is settled by one, and neither spins."""
    with sharing() as shared:
        one, two = shared.engines
        soon = one.clock.now() + 300
        for future in submit(one, [r.promise(f"p{at:03}", soon) for at in range(200)]):
            assert future.result(PATIENCE_S).is_ok
        watching = submit(two, [c.WatchPromise(id=f"p{at:03}") for at in range(200)])
        states = {each.result(PATIENCE_S).data.promise.state for each in watching}
        assert states == {"rejected_timedout"}
        shared.check()


def test_what_is_due_happens_after_what_it_has_read() -> None:
    """An engine that is slow after it has seen what is due settles nothing before it was born."""
    times: list[int] = []
    has_ticked = threading.Event()

    class Noting:
        def committed(self, commit: Commit) -> None:
            times.extend(at for command, at in commit.commands if isinstance(command, Tick))
            if times:
                has_ticked.set()

    with sharing() as shared:
        one, two = cast("list[Any]", shared.engines)
        due, born, ids = two._store.due, 0, count()

        def slow(now: int, *arguments: Any) -> Any:
            nonlocal born
            found = due(now, *arguments)
            while found and born <= now:
                born = told(one, r.promise(f"p{next(ids)}", FAR)).promise.created_at
            return found

        one._tick_if_due = lambda: False
        two._store.due, two._observer = slow, Noting()
        told(one, r.promise("short", one.clock.now() + 200))
        assert has_ticked.wait(PATIENCE_S)
    assert times[0] >= born > 0


def test_a_second_of_a_store_that_fails_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Renewing messages fails like anything else that is written: no traceback each second."""
    has_failed = threading.Event()

    def refused(_: int) -> list[Message]:
        has_failed.set()
        raise StoreUnavailable("it only allows reading")

    with sharing(engines=1) as shared:
        (engine,) = cast("list[Any]", shared.engines)
        renew, engine._store.renew_messages = engine._store.renew_messages, refused
        assert has_failed.wait(PATIENCE_S)
        engine._store.renew_messages = renew
        told(engine, r.promise("p", FAR))
    told_of = [each for each in caplog.records if "only allows reading" in each.getMessage()]
    assert told_of
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []


def test_random_commands_on_shared_ids() -> None:
    """No version is acquired twice, no settled promise changes, every invariant holds."""
    chance = random.Random(7)
    with sharing() as shared:
        scripts = [list(random_commands(chance, pid)) for pid in ("x", "y")]
        replies = shared.together(*scripts)
        acquired: list[tuple[str, int]] = []
        settled: dict[str, object] = {}
        for script, answers in zip(scripts, replies, strict=True):
            for request, reply in zip(script, answers, strict=True):
                assert reply.status < 500, reply
                if isinstance(request, c.AcquireTask) and reply.is_ok:
                    acquired.append((request.id, reply.data.task.version))
                promise = getattr(reply.data, "promise", None)
                if promise is not None and not promise.is_pending:
                    assert settled.setdefault(promise.id, promise.state) == promise.state
        assert len(acquired) == len(set(acquired))
        assert acquired
        state = shared.check()
        assert {key: state.promises[key].state for key in settled} == settled


def random_commands(chance: random.Random, pid: str):
    for _ in range(400):
        key = str(chance.randrange(24))
        other = str(chance.randrange(24))
        version = chance.choice((0, 0, 1, 1, 2, 3))
        yield chance.choice(
            (
                r.target(key),
                r.settle(key) if chance.random() < 0.3 else r.target(key),
                r.acquire(key, version, pid=pid, ttl=60_000),
                r.acquire(key, version, pid=pid, ttl=60_000),
                r.fulfill(key, version),
                r.suspend(key, version, other),
                r.callback(other, key),
                c.ReleaseTask(id=key, version=version),
                c.GetPromise(id=key),
                c.HaltTask(id=key),
                c.ContinueTask(id=key),
                r.run(f"run/{key}", a="", b="a"),
                r.take(2, pid=pid),
            )
        )


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_a_row_that_somebody_keeps_locked_holds_up_nobody_else(in_one_batch) -> None:
    """A person with an open transaction, or a process that was stopped: others are served."""
    with sharing(engines=1) as shared:
        (engine,) = shared.engines
        assert engine.call(r.promise("p")).is_ok
        send = submit_at_once if in_one_batch else submit
        with psycopg.connect(shared.url) as somebody:
            somebody.execute("SELECT FROM layby.promises WHERE id = 'p' FOR UPDATE")
            settling, *others = send(engine, [r.settle("p"), r.promise("q"), r.promise("s")])
            assert [each.result(PATIENCE_S).status for each in others] == [200, 200]
            assert engine.call(r.settle("q")).is_ok
            assert not settling.done()
        assert settling.result(PATIENCE_S).is_ok
        assert shared.check().promises["p"].state == "resolved"


def test_what_stays_locked_is_refused_in_the_end() -> None:
    with sharing(engines=1) as shared:
        (engine,) = shared.engines
        assert engine.call(r.promise("p")).is_ok
        with psycopg.connect(shared.url) as somebody:
            somebody.execute("SELECT FROM layby.promises WHERE id = 'p' FOR UPDATE")
            with pytest.raises(StoreBusy, match="keeps a row of this locked"):
                engine.call(r.settle("p"))


def test_what_comes_after_what_stays_locked_is_not_begun() -> None:
    """Of the same batch: its sender asks for both again, in order."""
    with sharing(engines=1) as shared:
        (engine,) = shared.engines
        assert engine.call(r.promise("p")).is_ok
        answered: list[tuple[str, Any]] = []
        all_are = threading.Event()

        def told(answers) -> None:
            answered.extend((item.request.id, answer) for item, answer in answers)
            if len(answered) == 4:
                all_are.set()

        with psycopg.connect(shared.url) as somebody:
            somebody.execute("SELECT FROM layby.promises WHERE id = 'p' FOR UPDATE")
            one, later = Allowance(500), Allowance(500)
            asked = {"p": (r.settle("p"), one), "q": (r.promise("q"), one)}
            asked |= {"s": (r.promise("s"), one), "t": (r.promise("t"), later)}
            engine.submit(
                [Item(each, told, caller="one", allowance=room) for each, room in asked.values()]
            )
            assert all_are.wait(PATIENCE_S)
        assert [each for each, _ in answered] == ["p", "q", "s", "t"]
        (_, first), *behind, (_, last) = answered
        assert isinstance(first, StoreBusy)
        assert [answer for _, answer in behind] == [NOT_BEGUN] * 2
        assert last.status == 200
        assert "q" not in shared.check().promises


def test_what_a_caller_asks_later_stays_behind_what_is_held_up() -> None:
    """Its requests are carried out in order, though the row of the second is free."""
    with sharing(engines=1) as shared:
        (engine,) = shared.engines
        assert engine.call(r.promise("p")).is_ok
        answered: list[str] = []

        def told(answers) -> None:
            answered.extend(item.request.id for item, _ in answers)

        with psycopg.connect(shared.url) as somebody:
            somebody.execute("SELECT FROM layby.promises WHERE id = 'p' FOR UPDATE")
            asked = [r.settle("p"), r.promise("q"), r.settle("q")]
            engine.submit([Item(each, told, caller="one") for each in asked[:2]])
            engine.submit([Item(asked[2], told, caller="one")])
            assert engine.call(r.promise("s")).is_ok
            assert answered == []
        while len(answered) < len(asked):
            assert engine.call(c.GetPromise(id="s")).is_ok
        assert answered == ["p", "q", "q"]
        assert shared.check().promises["q"].state == "resolved"
