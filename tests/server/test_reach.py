"""Which ids and groups a request names: nothing outside a prefix slips through in any field."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from layby.core.commands import (
    CreateSchedule,
    FailTask,
    FenceTask,
    FinishTask,
    Released,
    ReleaseTasks,
    RootVerdict,
    SettlePromise,
    Take,
    TaskVersion,
)
from layby.core.limits import GetLimit
from layby.core.replies import refuse
from layby.server.reach import bounded, is_within
from layby.wire.decode import KINDS
from tests.helpers.sample_requests import (
    GROUP,
    HANDING_BACK,
    HOLDING,
    NAMELESS,
    SAMPLES,
    TAKING,
    UNBOUNDED,
    read,
    request,
)

MINE = "mine/"
GRANTED = frozenset({GROUP})
NAMING_NONE = {"layby.now"}
NAMED_BY_ID = sorted(SAMPLES.keys() - UNBOUNDED - NAMING_NONE - (HOLDING - HANDING_BACK) - NAMELESS)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def changed(data: Any, path: tuple[Any, ...], value: str) -> Any:
    copy = msgspec.json.decode(msgspec.json.encode(data))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def named_ids() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every place of every sample where an id stands."""
    for kind in NAMED_BY_ID:
        for path, value in leaves(SAMPLES[kind](MINE)):
            if isinstance(value, str) and value.startswith(MINE):
                yield kind, path


def test_every_kind_of_the_wire_has_a_sample() -> None:
    """So that the tests below speak of all of them, but for a batch, which consists of them."""
    assert {*SAMPLES, "layby.batch"} == set(KINDS)


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_what_names_only_ids_of_the_prefix_is_within(kind: str) -> None:
    """Unless no prefix can bound it."""
    assert is_within(kind, request(kind, MINE), MINE, GRANTED) == (kind not in UNBOUNDED)


@pytest.mark.parametrize(("kind", "path"), list(named_ids()))
def test_each_id_counts_wherever_it_stands(kind: str, path: tuple[Any, ...]) -> None:
    """One id outside, all others inside."""
    data = changed(SAMPLES[kind](MINE), path, "other/x")
    assert not is_within(kind, read(kind, data), MINE, GRANTED)


def test_places_of_ids_were_found() -> None:
    """The search above is not blind."""
    assert {kind for kind, _ in named_ids()} == set(NAMED_BY_ID)
    assert ("task.fence", ("action", "data", "id")) in named_ids()


def test_any_token_may_ask_what_time_it_is() -> None:
    assert is_within("layby.now", read("layby.now", {}), MINE, frozenset())


def test_a_worker_publishes_only_in_groups_it_is_granted() -> None:
    """Whoever starts a run by its name trusts what was published there."""
    publish = request("layby.flow.publish", MINE)
    assert is_within("layby.flow.publish", publish, MINE, GRANTED)
    assert not is_within("layby.flow.publish", publish, MINE, frozenset({"other"}))


def test_a_fence_around_a_settlement_names_its_promise() -> None:
    """Otherwise a task of one's own would open every promise there is."""
    inner = SettlePromise(id="other/x", state="resolved")
    fence = FenceTask(id="mine/x", version=1, inner=inner)
    assert not is_within("task.fence", fence, MINE, GRANTED)
    assert is_within("task.fence", FenceTask(id="mine/x", version=1, inner=None), MINE, GRANTED)


def test_a_schedules_template_is_judged_by_the_ids_it_will_make() -> None:
    """The SDKs' template begins with the schedule's id."""

    def judged(schedule_id: str, template: str) -> bool:
        data = SAMPLES["schedule.create"](MINE) | {"id": schedule_id, "promiseId": template}
        body = read("schedule.create", data)
        assert isinstance(body, CreateSchedule)
        return is_within("schedule.create", body, MINE, GRANTED)

    assert judged("mine/s", "{{.id}}.{{.timestamp}}")
    assert not judged("other/s", "{{.id}}.{{.timestamp}}")
    assert not judged("mine/s", "{{.timestamp}}")
    assert not judged("other/s", "mine/{{.timestamp}}")


def test_a_verdict_names_the_root_of_the_run() -> None:
    """A token for one run's nodes alone does not settle the run."""
    finish = FinishTask(id="mine/x:a", version=1, root=RootVerdict("resolved"))
    fail = FailTask(id="mine/x:a", version=1, root=RootVerdict("rejected"))
    for kind, body in (("layby.task.finish", finish), ("layby.task.fail", fail)):
        assert is_within(kind, body, MINE, GRANTED)
        assert not is_within(kind, body, "mine/x:", GRANTED)
        assert is_within(kind, msgspec.structs.replace(body, root=None), "mine/x:", GRANTED)


def test_claims_that_a_worker_names_count() -> None:
    """Those it hands back, and those it says have begun, also in a take that rides."""
    released = ReleaseTasks(pid="w", incarnation="i", tasks=(Released("other/x", 1),))
    assert not is_within("layby.worker.release", released, MINE, GRANTED)
    begun = (TaskVersion("other/x", 1),)
    take = Take(pid="w", incarnation="i", group=GROUP, names=(), free=1, begun=begun)
    assert not is_within("layby.worker.take", take, MINE, GRANTED)
    finish = FinishTask(id="mine/x", version=1, take=take)
    assert not is_within("layby.task.finish", finish, MINE, GRANTED)


def test_a_heartbeat_for_no_task_names_no_id() -> None:
    """Released SDKs send that."""
    assert is_within(
        "task.heartbeat", read("task.heartbeat", {"pid": "w", "tasks": []}), MINE, frozenset()
    )


@pytest.mark.parametrize("kind", sorted(TAKING))
def test_a_take_needs_its_group(kind: str) -> None:
    """Alone, or riding on another command."""
    body = request(kind, MINE)
    assert is_within(kind, body, MINE, GRANTED)
    assert not is_within(kind, body, MINE, frozenset())
    assert not is_within(kind, body, MINE, frozenset({"h"}))


@pytest.mark.parametrize("kind", sorted(TAKING - HOLDING))
def test_without_a_take_no_group_is_needed(kind: str) -> None:
    """Whoever may name the task may end it; whoever may name the run may start it."""
    body = msgspec.structs.replace(request(kind, MINE), take=None)
    assert is_within(kind, body, MINE, frozenset())


@pytest.mark.parametrize("kind", sorted(HOLDING))
def test_acting_for_a_worker_needs_some_group(kind: str) -> None:
    """A token that may take nothing has no worker."""
    assert is_within(kind, request(kind, MINE), MINE, GRANTED)
    assert not is_within(kind, request(kind, MINE), MINE, frozenset())


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_what_could_not_be_read_may_have_its_answer(kind: str) -> None:
    """It names nothing and will do nothing; what is never allowed is refused all the same."""
    unread = refuse(400, "Invalid request: ...")
    assert is_within(kind, unread, MINE, frozenset()) == (kind not in UNBOUNDED)


@pytest.mark.parametrize("kind", ["", "no.such", "tick.free_tasks", "tick.offer_messages"])
def test_unknown_kinds_are_outside(kind: str) -> None:
    """Those of the engine itself are unknown to the wire."""
    assert not is_within(kind, refuse(400, "Unknown operation"), MINE, GRANTED)


def takes_in(body: Any) -> list[Take]:
    """Found by looking everywhere, not by knowing where."""
    if isinstance(body, Take):
        return [body]
    if isinstance(body, msgspec.Struct):
        return [t for field in body.__struct_fields__ for t in takes_in(getattr(body, field))]
    if isinstance(body, list | tuple):
        return [take for each in body for take in takes_in(each)]
    return []


def test_a_trigger_asks_for_the_prefix_of_the_token_whatever_the_caller_says() -> None:
    """Polls are shared by who it is: so that nobody can join those of somebody else."""
    body = msgspec.structs.replace(request("layby.task.defer", MINE), principal="other/")
    assert bounded(body, MINE).principal == MINE


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_every_take_is_bounded(kind: str) -> None:
    """And nothing else is changed, but for whom the answer about a limit names."""
    body = request(kind, MINE)
    result = bounded(body, MINE)
    assert [take.prefix for take in takes_in(result)] == [MINE] * (kind in TAKING)
    assert bounded(result, MINE) == result
    if kind == "layby.limit.get":
        assert result == GetLimit(name=f"{MINE}l", prefix=MINE)
    elif kind not in TAKING:
        assert result is body


def test_every_command_that_can_carry_a_take_is_among_the_samples() -> None:
    """By its fields, so that a new one cannot hand out tasks without a prefix."""
    carrying = {
        kind
        for kind, each in KINDS.items()
        if each is Take or any("Take" in str(field.type) for field in msgspec.structs.fields(each))
    }
    assert carrying == TAKING


@pytest.mark.parametrize(
    ("asked", "given"),
    [("", MINE), ("mine/sub/", "mine/sub/"), ("other/", MINE), ("min", MINE), (MINE, MINE)],
)
def test_a_take_may_ask_for_less_than_its_token_allows(asked: str, given: str) -> None:
    """Never for more."""
    take = Take(pid="w", incarnation="i", group="g", names=(), free=1, prefix=asked)
    assert bounded(take, MINE).prefix == given
    assert bounded(FinishTask(id="mine/x", version=1, take=take), MINE).take.prefix == given


def test_a_command_without_a_take_is_left_alone() -> None:
    body = FinishTask(id="mine/x", version=1)
    assert bounded(body, MINE) is body


@pytest.mark.parametrize(("asked", "shown"), [("", "a/"), ("b/", "a/"), ("a/c", "a/c")])
def test_whoever_holds_a_limit_is_named_only_within_the_prefix(asked: str, shown: str) -> None:
    assert bounded(GetLimit(name="a/l", prefix=asked), "a/") == GetLimit(name="a/l", prefix=shown)
