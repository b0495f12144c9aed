"""From what was asked for to what really holds it up."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from layby import Context, RunFailed, Runner, TaskHandle, Workflow, task
from layby.core.model import Promise, Task
from layby.core.queries import ExplainPromise
from layby.core.replies import Explanation
from layby.testing import virtual_test
from layby.workflow.limit_reasons import FullLimit
from layby.workflow.reasons import Reason
from layby.workflow.why import ENOUGH, MAX_ASKED, Why, find_why, told, why_of

NOW = 100_000


def reason(key: str, *awaited: str, kind: Any = "promise", **fields: Any) -> Reason:
    fields = {"sentence": "is there", "since": 40_000, "subject": f"task {key}"} | fields
    return Reason(id=key, kind=kind, awaited=awaited, **fields)


def why(*reasons: Reason) -> Why:
    return why_of({each.id: each for each in reasons}, reasons[0].id)


def ids(found: Why) -> list[str]:
    return [each.id for each in found.chain]


def test_a_cause_by_itself():
    """Nothing else is waited for: this is the cause."""
    assert ids(why(reason("a"))) == ["a"]


def test_the_chain_leads_to_the_leaf():
    """However many links there are in between."""
    found = why(reason("a", "b"), reason("b", "c"), reason("c"))
    assert (ids(found), found.others) == (["a", "b", "c"], 0)


def test_what_is_not_known_is_no_link():
    """A promise that cannot be looked at leaves the one before it as the cause."""
    assert ids(why(reason("a", "gone"))) == ["a"]
    assert ids(why(reason("a", "b"), reason("b", "gone"))) == ["a", "b"]


def test_what_was_not_looked_at_is_no_cause_of_its_own():
    """Where asking ended nothing has been found."""
    found = why(reason("a", "b", "c"), reason("b", "gone"), reason("c"))
    assert (ids(found), found.others) == (["a", "c"], 0)


def test_a_long_chain_is_told_by_its_ends():
    """Nobody reads a hundred links."""
    names = "abcdefg"
    chain = [reason(a, b) for a, b in pairwise(names)]
    found = why(*chain, reason("g", since=None))
    assert told(found, NOW) == (
        "task a waits for task b, which waits for a chain of 4 more that ends with task g, "
        "which is there"
    )


def test_a_cause_somebody_can_do_something_about_comes_first():
    """Time passes by itself; a halted task does not continue by itself."""
    found = why(
        reason("a", "sleeping", "halted", "running"),
        reason("sleeping", kind="sleep", since=0),
        reason("halted", kind="manual"),
        reason("running", kind="running", since=0),
    )
    assert (ids(found), found.others) == (["a", "halted"], 2)


def test_of_causes_alike_the_longest_wait_comes_first():
    """It has been forgotten the longest."""
    found = why(reason("a", "b", "c"), reason("b", since=50), reason("c", since=49))
    assert ids(found) == ["a", "c"]


def test_two_ways_to_one_cause_are_one_cause():
    """A diamond is no second cause."""
    found = why(reason("a", "b", "c"), reason("b", "d"), reason("c", "d"), reason("d"))
    assert (ids(found), found.others) == (["a", "b", "d"], 0)


def test_waiting_in_a_circle_is_said():
    """Nobody in it can go on; the command that breaks it is named."""
    found = why(reason("a", "b"), reason("b", "c"), reason("c", "b"))
    assert ids(found) == ["a", "b", "c"]
    assert found.cause.kind == "circle"
    assert told(found, NOW) == (
        "task a waits for task b, which waits for task c, which waits for task b in turn, "
        "so none of them can go on, for 1 min now; whoever cancels one of them can unblock it"
    )
    assert found.cause.command == "layby cancel c"


def test_two_that_wait_for_each_other_below_a_third():
    """Neither is on the other's way from above."""
    found = why(reason("a", "b", "c"), reason("b", "c"), reason("c", "b"))
    assert found.cause.kind == "circle"


def test_what_somebody_can_settle_comes_before_a_permit():
    """cli.md: "preferably one that somebody can do something about"; holders wait for it too."""
    found = why(
        reason("a", "b", "c", kind="dependency"),
        reason("b", kind="limit"),
        reason("c", kind="promise", since=70_000),
    )
    assert found.cause.id == "c"


def test_a_permit_that_only_its_own_caller_holds():
    """limits.md: "if there is no other permit, neither goes on": who holds it waits for it."""
    full = FullLimit(("a", "b"), "layby limits set gpu --concurrency 3")
    lacks = reason("c", kind="limit", sentence="waits for a permit", full=full)
    found = why(reason("a", "b"), reason("b", "c"), lacks)
    assert told(found, NOW) == (
        "task a waits for task b, which waits for task c, which waits for a permit, which wait "
        "for it in turn, for 1 min now; whoever raises the limit, or cancels one of those that "
        "hold it, can unblock it"
    )
    assert found.cause.command == "layby limits set gpu --concurrency 3"
    assert "in turn" not in told(why(reason("b", "c"), lacks), NOW)  # a may end, and give it up


def test_the_sentence_of_a_chain():
    """Subject, links, cause, since when, until when at most, who can unblock it."""
    found = why(
        reason("a", "b", "c", kind="dependency"),
        reason("b", sentence="is halted", kind="manual", deadline=160_000, unblock="anyone"),
        reason("c", kind="sleep"),
    )
    assert told(found, NOW) == (
        "task a waits for task b, which is halted, for 1 min now, until 1970-01-01 00:02:40 UTC "
        "at most (in 1 min); anyone can unblock it (1 other cause)"
    )


def test_a_run_is_named_once():
    """Its tasks need no `of run` after that; those of another run do."""
    found = why(
        reason("run/r", "run/r:a", subject="run 'r'"),
        reason("run/r:a", "run/s:b", subject="task 'a' of run 'r'"),
        reason("run/s:b", subject="task 'b' of run 's'", since=None),
    )
    assert told(found, NOW) == (
        "run 'r' waits for task 'a', which waits for task 'b' of run 's', which is there"
    )


def test_the_sentence_of_something_settled_is_short():
    """No deadline, nobody to unblock it."""
    found = why(reason("a", kind="settled", sentence="is settled: resolved", deadline=5))
    assert told(found, NOW) == "task a is settled: resolved"


def test_who_would_notice_is_told_of_what_was_asked_for():
    """On the way from somebody who waits, that somebody waits is known."""
    leaf = reason("b", aside="1 task waits for it", unblock="anyone")
    assert told(why(leaf), NOW) == (
        "task b is there, for 1 min now; 1 task waits for it; anyone can unblock it"
    )
    assert "1 task waits" not in told(why(reason("a", "b"), leaf), NOW)


def test_a_wait_that_has_just_begun_needs_no_time():
    """`for 12 ms now` is noise."""
    assert told(why(reason("a", since=NOW - 12)), NOW) == "task a is there"


# --- asking ------------------------------------------------------------------------------


def looked_up(waits: dict[str, list[str]], asked: list[str]) -> Any:
    async def ask(key: str) -> Explanation | None:
        asked.append(key)
        if key not in waits:
            return None
        awaited = [(Promise(each, each, "{}", "{}", 9**9, 0), None) for each in waits[key]]
        task = Task(key, "poll://any@x", state="suspended", waiting_since=5)
        promise = Promise(key, key, "{}", "{}", 9**9, 0)
        return Explanation(promise, task if awaited else None, awaited)

    return ask


def test_each_promise_is_asked_for_once():
    """Also where many wait for the same one, and in a circle."""
    asked: list[str] = []
    waits = {"a": ["b", "c"], "b": ["c", "a"], "c": ["d"], "d": []}
    found = asyncio.run(find_why(looked_up(waits, asked), "a", NOW))
    assert found is not None
    assert ids(found)[-1] == "d"
    assert sorted(asked) == ["a", "b", "c", "d"]


def test_an_unknown_promise_has_no_why():
    """Whoever asked says which ids there are."""
    assert asyncio.run(find_why(looked_up({}, []), "a", NOW)) is None


def test_asking_ends():
    """A tree of thousands is not read to its end."""
    asked: list[str] = []
    waits = {str(number): [str(number + 1)] for number in range(2_000)}
    found = asyncio.run(find_why(looked_up(waits, asked), "0", NOW))
    assert found is not None
    assert found.is_cut
    assert len(asked) == MAX_ASKED


def test_many_alike_are_not_all_asked_for():
    """Once a cause has been found, a hundred are enough; then there may be more."""
    asked: list[str] = []
    waits: dict[str, list[str]] = {"a": [str(number) for number in range(500)]}
    waits |= {str(number): [] for number in range(500)}
    found = asyncio.run(find_why(looked_up(waits, asked), "a", NOW))
    assert found is not None
    assert (len(asked), found.others, found.is_cut) == (ENOUGH, ENOUGH - 2, True)
    assert told(found, NOW).endswith("(98 or more other causes)")


@task(limit="gpu")
async def item_with_permit(context: Context, item: int) -> int:
    return item


@virtual_test
async def test_a_caller_that_keeps_the_permit_its_items_need():
    """limits.md: `layby why` shows that the task waits for a permit which its own caller holds."""

    @task(limit="gpu")
    async def caller(context: Context, handle: TaskHandle) -> None:
        await handle.map(item_with_permit, [1, 2])

    async with Runner("memory:") as runner:
        await runner.limit("gpu", concurrency=1, count_parked=True)
        run = await runner.start(Workflow("locked", tasks=[caller]), run_id="r")
        await asyncio.sleep(1)

        async def ask(key: str) -> Explanation | None:
            reply = await runner.worker.client.send(ExplainPromise(id=key))
            return reply.data if isinstance(reply.data, Explanation) else None

        found = await find_why(ask, "run/r", runner.now())
        await run.cancel()
    assert found is not None
    assert "held by run/r:caller), which waits for it in turn" in told(found, 0)
    assert found.cause.command == "layby limits set gpu --concurrency 2"


@virtual_test
async def test_a_run_past_its_deadline_says_so_and_what_kept_failing():
    """The traceback that `RunFailed.errors` has, too."""

    @task(retries=100)
    async def first(context: Context) -> None:
        raise LookupError("not there")

    async with Runner("memory:") as runner:
        run = await runner.start(Workflow("late", tasks=[first]), run_id="r", deadline=5)
        with pytest.raises(RunFailed) as failed:
            await run.result()

        async def ask(key: str) -> Explanation | None:
            reply = await runner.worker.client.send(ExplainPromise(id=key))
            return reply.data if isinstance(reply.data, Explanation) else None

        found = await find_why(ask, "run/r", runner.now())
    assert found is not None
    assert "run's deadline passed" in told(found, 0)
    assert found.cause.command == "layby rerun r"
    assert [each.traceback for each in found.failures] == [failed.value.errors["first"].traceback]
