"""What a batch may load: portions by the size of what is stored, in order, none forgotten."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core.commands import Command, CreatePromise, GetPromise, SettlePromise, Value
from layby.core.model import NEVER
from layby.core.queries import SearchPromises
from layby.core.replies import PromiseData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import NOT_BEGUN, Allowance, Answer, Item
from layby.engine.observer import Commit
from layby.engine.portions import Portion, Scales
from layby.errors import StoreBusy, StoreError, StoreUnavailable
from layby.store.api import Store, StoreConflict
from layby.store.memory import MemoryStore
from layby.store.page_bounds import LIGHT
from layby.store.sqlite import SqliteStore
from tests.helpers.clocks import ManualClock
from tests.helpers.postgres_stores import postgres_store

SIZES = {"small": 10, "large": 2 * LIGHT, "none": 0}


def filled(store: SqliteStore | MemoryStore) -> Engine:
    engine = Engine(store, ManualClock())
    engine.start_inline()
    for name in ("small", "large"):
        value = Value(data="x" * SIZES[name])
        assert engine.call(CreatePromise(id=name, timeout_at=NEVER, param=value)).status == 200
    return engine


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore(Settings(), next_after)
    elif request.param == "sqlite":
        yield SqliteStore(tmp_path / "layby.db", Settings(), next_after)
    else:
        with closing(postgres_store()) as found:
            yield found


def ignore(_: object) -> None:
    pass


def gets(names: Sequence[str], allowance: Allowance | None) -> list[Item]:
    return [Item(GetPromise(id=name), ignore, allowance=allowance) for name in names]


def portions(store: Store, batch: Sequence[Item], most: int = 10**6) -> list[Portion]:
    return list(Scales(store, most).portions(batch))


def test_only_what_is_heavy_is_told(store):
    filled(store)
    assert store.weigh([]) == {}
    weights = store.weigh(["small", "none", "large", "small"])
    assert list(weights) == ["large"]
    assert SIZES["large"] < weights["large"] < SIZES["large"] + 100


@pytest.mark.parametrize("asked", [["large"] * 5, ["small"] * 5 + ["large"] * 2])
def test_a_transaction_ends_when_it_has_loaded_enough(store, asked):
    filled(store)
    batch = gets(asked, Allowance(10**9))
    found = portions(store, batch, most=1_000)
    assert [item for each in found for item in each.begun] == batch
    assert all(not each.put_off for each in found)
    larges = [
        sum(getattr(item.request, "id", "") == "large" for item in each.begun) for each in found
    ]
    assert larges == [1] * asked.count("large")


def test_what_goes_beyond_the_allowance_is_put_off_and_all_that_follows(store):
    """Even what would fit: the order counts. The first is always begun."""
    filled(store)
    mine, others = Allowance(500), Allowance(500)
    batch = [*gets(["large", "small", "none"], mine), *gets(["small", "none"], others)]
    found = portions(store, batch)
    assert [item for each in found for item in each.begun] == [batch[0], *batch[3:]]
    assert [item for each in found for item in each.put_off] == batch[1:3]


def test_a_strict_allowance_has_room_for_all_or_the_rest_is_put_off(store):
    """Even the first, so that whoever has no turn loads nothing large."""
    filled(store)
    mine, others = Allowance(LIGHT, strict=True), Allowance(LIGHT, strict=True)
    batch = [*gets(["small", "large", "none"], mine), *gets(["small", "none"], others)]
    found = portions(store, batch)
    assert [item for each in found for item in each.begun] == [batch[0], *batch[3:]]
    assert [item for each in found for item in each.put_off] == batch[1:3]


def test_what_is_asked_by_somebody_who_hung_up_is_not_begun(store):
    """Reads and writes alike; a take that waits has begun."""
    engine = filled(store)
    answers: list[tuple[Item, Answer]] = []
    requests: list[Command] = [GetPromise(id="small"), CreatePromise(id="new", timeout_at=NEVER)]
    engine.submit([Item(each, answers.extend, is_gone=lambda: True) for each in requests])
    engine.pump()
    assert [answer for _, answer in answers] == [NOT_BEGUN, NOT_BEGUN]
    assert engine.call(GetPromise(id="new")).status == 404
    waiting = gets(["small"], None)[0]
    waiting.is_gone, waiting.until = lambda: True, 1
    assert [each.begun for each in portions(store, [waiting])] == [[waiting]]


def test_a_search_of_somebody_who_hung_up_is_not_carried_out(store):
    engine = filled(store)
    answers: list[tuple[Item, Answer]] = []
    engine.submit([Item(SearchPromises(), answers.extend, is_gone=lambda: True)])
    engine.pump()
    assert [answer for _, answer in answers] == [NOT_BEGUN]


def test_weights_follow_what_is_stored(store):
    """Param and value together, and nothing of what is gone."""
    engine = filled(store)
    value = Value(data="x" * LIGHT)
    assert engine.call(SettlePromise(id="small", state="resolved", value=value)).status == 200
    assert LIGHT < store.weigh(["small"])["small"] < LIGHT + 200


def test_what_is_heavy_is_loaded_whole_beside_what_is_not(store):
    engine = filled(store)
    answers: list[tuple[Item, Answer]] = []
    names = ["small", "large", "none"]
    engine.submit([Item(GetPromise(id=name), answers.extend) for name in names])
    engine.pump()
    told = {getattr(item.request, "id", ""): answer for item, answer in answers}
    assert getattr(told["none"], "status", 0) == 404
    for name in ("small", "large"):
        data = getattr(told[name], "data", None)
        assert isinstance(data, PromiseData)
        assert "x" * SIZES[name] in data.promise.param
        assert len(data.promise.param) < SIZES[name] + 100
        assert data.promise.value


def test_what_is_put_off_is_answered_and_not_done(store):
    engine = filled(store)
    answers: list[tuple[Item, Answer]] = []
    allowance = Allowance(500)
    requests: list[Command] = [GetPromise(id="large"), CreatePromise(id="new", timeout_at=NEVER)]
    engine.submit([Item(each, answers.extend, allowance=allowance) for each in requests])
    engine.pump()
    told = {item.request.kind: answer for item, answer in answers}
    assert told["promise.create"] is NOT_BEGUN
    assert getattr(told["promise.get"], "status", None) == 200
    assert engine.call(GetPromise(id="new")).status == 404


def test_what_comes_after_one_that_cannot_be_served_is_not_done_but_for_others(store, monkeypatch):
    """Its sender asks again, in order; nobody else is concerned."""
    engine = Engine(store, ManualClock())
    engine.start_inline()
    save = store.save

    def failing(changes, *args, **options):
        if "bad" in changes.promises:
            raise StoreUnavailable("the disk is full")
        return save(changes, *args, **options)

    monkeypatch.setattr(store, "save", failing)
    told: dict[str, Answer] = {}

    def receive(answers):
        told.update((item.request.id, answer) for item, answer in answers)

    one, other = Allowance(500), Allowance(500)
    asked = {"before": one, "bad": one, "theirs": other, "after": one, "ours": None}
    engine.submit(
        [
            Item(CreatePromise(id=each, timeout_at=NEVER), receive, allowance=allowance)
            for each, allowance in asked.items()
        ]
    )
    engine.pump()
    assert told["after"] is NOT_BEGUN
    assert isinstance(told["bad"], StoreUnavailable)
    is_done = {each: engine.call(GetPromise(id=each)).is_ok for each in asked}
    assert is_done == {"before": True, "bad": False, "theirs": True, "after": False, "ours": True}


@pytest.mark.parametrize("failure", [StoreBusy("locked"), StoreConflict("a row stayed locked")])
def test_a_store_that_cannot_weigh_loses_nobody(store, monkeypatch, failure):
    filled(store)

    def fail(*_: object) -> list[int]:
        raise failure

    monkeypatch.setattr(store, "weigh", fail)
    batch = gets(["large", "small"], Allowance(5))
    assert [item for each in portions(store, batch) for item in each.begun] == batch


def test_a_file_that_cannot_be_read_is_told_as_in_a_transaction(tmp_path):
    store = SqliteStore(tmp_path / "layby.db", Settings(), next_after)
    store._connection.close()
    with pytest.raises(StoreError):
        store.weigh(["a"])


def test_a_locked_table_is_weighed_later():
    """Nothing of the attempt is left behind: what comes next is done."""
    with closing(postgres_store()) as store:
        with psycopg.connect(store._url) as other:
            other.execute("LOCK TABLE layby.promises IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreConflict):
                store.weigh(["a"])
        with store.transaction():
            assert store.store_time() == 0
        assert store.weigh(["a"]) == {}


def test_requests_of_this_process_are_not_weighed(store, monkeypatch):
    filled(store)
    monkeypatch.setattr(store, "weigh", None)
    batch = gets(["large"] * 3, None)
    assert [each.begun for each in portions(store, batch, most=10)] == [batch]


@given(
    asked=st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 3)), max_size=30),
    room=st.integers(1, 6 * LIGHT),
    most=st.integers(1, 6 * LIGHT),
)
def test_every_request_is_begun_or_put_off_once_and_in_order(asked, room, most):
    """Of each caller a beginning is begun, at least one, and the rest is put off."""
    store = MemoryStore(Settings(), next_after)
    filled(store)
    allowances: list[Allowance | None] = [Allowance(room) for _ in range(3)]
    allowances.append(None)
    batch = [gets([name], allowances[caller])[0] for name, caller in asked]
    found = portions(store, batch, most)
    begun = [item for each in found for item in each.begun]
    put_off = [item for each in found for item in each.put_off]
    assert sorted(map(id, begun + put_off)) == sorted(map(id, batch))
    for allowance in allowances:
        theirs = [item for item in batch if item.allowance is allowance]
        first = [item for item in begun if item.allowance is allowance]
        assert theirs[: len(first)] == first
        assert bool(first) == bool(theirs)
        assert allowance is not None or first == theirs


def test_who_asks_for_nothing_heavy_comes_first_and_each_caller_stays_in_order(store):
    filled(store)
    asked = [("a", "small"), ("a", "large"), ("b", "small"), ("a", "none"), ("c", "none")]
    batch = [
        Item(GetPromise(id=name), ignore, None, None, caller, Allowance(10**9))
        for caller, name in asked
    ]
    found = portions(store, batch, most=1_000)
    assert [[item.caller for item in each.begun] for each in found] == [
        ["b", "c"],
        ["a", "a"],
        ["a"],
    ]
    assert [item for each in found for item in each.begun if item.caller == "a"] == [
        batch[0],
        batch[1],
        batch[3],
    ]
    assert [each.last_chars > 0 for each in found] == [False, True, False]


@pytest.mark.parametrize("name", ["large", "small", "none"])
def test_a_large_promise_is_read_beside_the_writer_and_answered_the_same(store, name):
    filled(store)
    seen: list[Command] = []

    class Seeing:
        def committed(self, commit: Commit) -> None:
            seen.extend(command for command, _ in commit.commands)

    engine = Engine(store, ManualClock(), observer=Seeing())
    engine.start()
    try:
        expected = engine.call(GetPromise(id=name))
        done: Future[Answer] = Future()
        item = Item(
            GetPromise(id=name),
            lambda answers: done.set_result(answers[0][1]),
            allowance=Allowance(10**9),
        )
        engine.submit([item])
        assert done.result(10) == expected
    finally:
        engine.stop()
    assert len(seen) == (1 if name == "large" else 2)
