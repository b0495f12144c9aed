"""Who settles a promise: of several calls exactly one wins, and each of them is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core import commands as c
from tests.helpers import requests as r
from tests.helpers.worlds import World

ONE = c.Value(data="MQ==")


def resolve(settlement_id: str | None = None, state: str = "resolved") -> c.ResolvePromise:
    return c.ResolvePromise(id="x", value=ONE, state=state, settlement_id=settlement_id)


def cancel(settlement_id: str | None = None) -> c.CancelPromise:
    return c.CancelPromise(id="x", settlement_id=settlement_id)


CALLS = {
    "resolve": resolve("first"),
    "reject": resolve("first", "rejected"),
    "cancel": cancel("first"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_copy_of_the_call_that_won_has_won(world: World, name: str) -> None:
    """Its answer was lost, and it is sent again: nothing changes, and it is told the same."""
    world.ok(r.promise("x"))
    first = world.ok(CALLS[name])
    world.clock.advance(5)
    second = world.ok(CALLS[name])
    assert (first.won, second.won) == (True, True)
    assert second.promise == first.promise


@pytest.mark.parametrize("name", CALLS)
def test_an_equal_value_of_somebody_else_has_not_won(world: World, name: str) -> None:
    """It is told what stands."""
    world.ok(r.promise("x"))
    won = world.ok(CALLS[name])
    for other in (resolve("other"), resolve(), cancel("other"), cancel()):
        answer = world.ok(other)
        assert not answer.won
        assert answer.promise == won.promise


def test_a_call_without_an_id_wins_once(world: World) -> None:
    """Nothing tells its copy from somebody else's call."""
    assert world.ok(resolve()).won
    assert not world.ok(resolve()).won


def test_resolving_what_does_not_exist_wins(world: World) -> None:
    """It is created settled; the copy has won too."""
    assert world.ok(resolve("first")).won
    assert world.ok(resolve("first")).won
    assert not world.ok(resolve("other")).won


def test_whoever_comes_after_the_deadline_has_lost(world: World) -> None:
    """Swept or not: time has settled it."""
    world.ok(r.promise("x", 500))
    world.clock.advance(500)
    for _ in range(2):
        answer = world.ok(resolve("late"))
        assert (answer.won, answer.promise.state) == (False, "rejected_timedout")
        world.tick(0)


def test_whoever_comes_after_a_protocol_settle_has_lost(world: World) -> None:
    """The protocol's own kind tells no id, and none is kept for it."""
    world.ok(r.promise("x"))
    world.ok(c.SettlePromise(id="x", state="resolved", value=ONE))
    assert world.dump().promises["x"].settlement_id is None
    assert not world.ok(resolve("first")).won


@pytest.mark.parametrize("given_id", ["", "x" * 37, "é", "a\0"])
def test_an_id_that_cannot_be_kept_is_refused(world: World, given_id: str) -> None:
    """It stays with the promise for good, so it has to be short."""
    reply = world.send(resolve(given_id))
    assert (reply.status, "settlementId" in str(reply.data)) == (400, True)


NAMES = st.sampled_from([None, "a", "b", "c"])
COMMANDS = st.one_of(
    st.builds(resolve, NAMES, st.sampled_from(["resolved", "rejected"])),
    st.builds(cancel, NAMES),
    st.just(c.SettlePromise(id="x", state="resolved", value=ONE)),
)


@given(st.lists(st.tuples(COMMANDS, st.sampled_from([0, 1, 400])), max_size=12))
def test_exactly_the_copies_of_one_call_win(script: list[tuple[c.Command, int]]) -> None:
    """And all are told the same promise, which is the one that is stored."""
    with World() as world:
        created = world.ok(r.promise("x", 1_000)).promise
        answers = []
        for command, passes in script:
            answers.append((command, world.ok(command)))
            world.tick(passes)
        settled = {answer.promise for _, answer in answers}
        assert len(settled) <= 1
        assert created not in settled
        winners = {_id(command) for command, answer in answers if _has_won(answer)}
        assert len(winners) <= 1
        for command, answer in answers:
            if _id(command) is not None and _id(command) in winners:
                assert _has_won(answer)


def _id(command: c.Command) -> str | None:
    return getattr(command, "settlement_id", None)


def _has_won(answer: object) -> bool:
    return getattr(answer, "won", False)


@pytest.mark.parametrize("state", ["resolved", "rejected", "rejected_canceled"])
@pytest.mark.parametrize("each", ["run/1", "run/1:a", "run/1:clean"])
def test_a_run_makes_its_outcome_itself(world: World, each: str, state: str) -> None:
    """Whether open or settled; what people settle below its tasks is as any promise."""
    nodes = (c.Node(id="a", name="n"), c.Node(id="clean", name="n", cleanup=True))
    world.ok(c.StartRun(id="run/1", name="r", group="g", nodes=nodes))
    world.ok(r.promise("run/1:a.c.promise.ok"))
    settle = c.ResolvePromise(id=each, state=state)
    refused = world.send(settle)
    assert refused.status == 409
    assert "outcome" in str(refused.data)
    assert world.ok(c.GetPromise(id=each)).promise.is_pending
    assert world.ok(c.ResolvePromise(id="run/1:a.c.promise.ok")).won
    assert world.ok(c.CancelPromise(id=each)).won
    assert world.send(settle).status == 409


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_settled_before_it_was_created(world: World, name: str) -> None:
    """By a server whose clock is a moment behind that of the one which has created it."""
    world.clock.advance(10)
    created = world.ok(r.promise("x")).promise.created_at
    settled = world.send(CALLS[name], created - 1).data
    assert settled.promise.settled_at == created
    world.check()
