"""A kind is declared once and whole, and names every id by which it reaches a row."""

from functools import cache
from itertools import count
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct, UnsetType

from layby.core import kinds, tag_names
from layby.core.footprint import Footprint
from layby.core.kinds import (
    ById,
    Command,
    DeliveryControl,
    EngineControl,
    Query,
    Sender,
    declare,
    handles,
    public_kinds,
)
from layby.core.replies import OK, Empty
from layby.core.rows import Rows
from layby.core.settings import Settings
from layby.core.step import step
from layby.engine.calendar import next_after
from layby.wire.decode import KINDS


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared here is gone afterwards."""
    monkeypatch.setattr(kinds, "_declared", dict(kinds._declared))


class Known(ById, frozen=True):
    def problems(self):
        return iter(())


def test_a_kind_is_declared_once() -> None:
    with pytest.raises(TypeError, match=r"promise\.get is declared twice: .*GetPromise.*Known"):
        declare("promise.get", sender=Sender.CLIENT, answer=Empty)(Known)


def test_nobody_may_send_a_kind_by_default() -> None:
    with pytest.raises(TypeError, match="sender"):
        declare("some.thing", answer=Empty)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("base", "sender", "missing"),
    [
        (Command, Sender.CLIENT, r"footprint\(\), named_ids\(\), problems\(\)"),
        (Command, Sender.ADMIN, r"footprint\(\), problems\(\)"),
        (Command, Sender.INTERNAL, r"footprint\(\)"),
        (Query, Sender.WORKER, r"read\(\), named_ids\(\), problems\(\)"),
        (EngineControl, Sender.INTERNAL, r"control\(\)"),
        (DeliveryControl, Sender.ADMIN, r"control\(\), problems\(\)"),
        (ById, Sender.CLIENT, r"problems\(\)"),
    ],
)
def test_a_missing_part_is_named(base, sender, missing) -> None:
    part: Any = msgspec.defstruct("Part", [("name", str)], bases=(base,), frozen=True, kw_only=True)
    with pytest.raises(TypeError, match=f"some.thing is declared without {missing}: "):
        declare("some.thing", sender=sender, answer=Empty)(part)


def test_a_command_has_one_handler() -> None:
    thing: Any = msgspec.defstruct("Thing", [], bases=(Known,), frozen=True)
    command = declare("some.thing", sender=Sender.CLIENT, answer=Empty)(thing)
    rows = Rows(Settings(), next_after)
    how = r"some.thing has no handler: attach one with @handles\(Thing\)"
    with pytest.raises(NotImplementedError, match=how):
        step(rows, command(id="x"), 0)
    with pytest.raises(TypeError, match=how):
        public_kinds()
    handles(command)(lambda d, c: OK)
    assert step(rows, command(id="x"), 0)[0] == OK
    assert public_kinds() == KINDS | {"some.thing": command}
    with pytest.raises(TypeError, match=r"some\.thing has two handlers"):
        handles(command)(lambda d, c: OK)


def test_the_wire_does_not_know_internal_kinds() -> None:
    internal = {kind for kind, each in kinds._declared.items() if each.sender is Sender.INTERNAL}
    assert {"tick.expire_promises", "layby.worker.check"} <= internal
    assert not internal & KINDS.keys()


def test_every_kind_of_layby_is_declared() -> None:
    """A class that forgot the decorator would be unknown to everybody."""

    def leaves(request: type) -> list[type]:
        below = [leaf for each in request.__subclasses__() for leaf in leaves(each)]
        return below or [request]

    ours = [each for each in leaves(kinds.BaseRequest) if each.__module__.startswith("layby.")]
    assert [each for each in ours if each not in kinds._declared.values()] == []


# --- every id by which it reaches a row is named, or lies below one that is ------------------


def made_of(wanted: Any, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Anything of a type, where no text is ever the same as another."""
    if get_origin(wanted) is Annotated:
        return made_of(get_args(wanted)[0], texts)
    if wanted in (str, int, bool):
        return {str: texts, int: st.integers(0, 9), bool: st.booleans()}[wanted]
    if wanted in (NoneType, Any, Raw):
        return st.none() if wanted is NoneType else st.just(Raw(b"{}"))
    if get_origin(wanted) in (Union, UnionType):
        some = [each for each in get_args(wanted) if each is not UnsetType]
        return st.one_of([made_of(each, texts) for each in some])
    if get_origin(wanted) is dict:
        keys = st.sampled_from([tag_names.BRANCH, tag_names.TARGET, tag_names.NAME])
        return st.dictionaries(keys, made_of(get_args(wanted)[1], texts))
    if get_origin(wanted) in (list, tuple):
        each = made_of(get_args(wanted)[0], texts)
        return st.lists(each, max_size=2).map(get_origin(wanted))
    assert issubclass(wanted, Struct), wanted
    fields = msgspec.structs.fields(wanted)
    return st.builds(wanted, **{each.name: made_of(each.type, texts) for each in fields})


@cache
def commands(kind: str) -> st.SearchStrategy[Command]:
    """Made once: to make the strategies of a kind takes longer than to draw from them."""
    numbers = count()
    return made_of(KINDS[kind], st.builds(lambda: f"<{next(numbers)}>"))


def ids_in(footprint: Footprint) -> set[str]:
    pairs = footprint.pairs | footprint.born_into | footprint.starts
    by_id = footprint.ids | footprint.branches_of | footprint.branches | footprint.schedules
    by_id |= footprint.lean | footprint.also | footprint.beside | footprint.exits
    by_id |= footprint.valueless | footprint.maybe_new
    by_id |= footprint.told.keys() | {task_id for task_id, _ in footprint.leasing}
    return by_id | footprint.runs_of | {each for pair in pairs for each in pair}


BOUNDED = sorted(
    kind
    for kind, each in KINDS.items()
    if issubclass(each, Command) and each.sender in (Sender.CLIENT, Sender.WORKER)
)


@pytest.mark.parametrize("kind", BOUNDED)
@given(data=st.data())
@settings(max_examples=20)
def test_every_id_of_the_footprint_is_named_or_lies_below_a_named_one(kind, data) -> None:
    """A token that covers what is named then covers all that the step can see by id."""
    command = data.draw(commands(kind))
    footprint = Footprint()
    command.footprint(footprint)
    named = tuple(command.named_ids())
    assert {each for each in ids_in(footprint) if not each.startswith(named)} == set()


def test_a_footprint_says_which_ids_it_holds() -> None:
    """A new field of it is either no id, or looked at above."""
    no_ids = {"pids", "leases_of", "renewals", "notices", "takes", "take_count", "ahead", "waiting"}
    no_ids |= {"oldest"}
    no_ids |= {"root_params", "leaving", "since", "until", "node_ids", "look"}
    no_ids |= {"also_pids", "locks", "may_wait", "claims"}
    no_ids |= {"limits", "also_limits", "defines", "compared"}
    looked_at = {"ids", "lean", "pairs", "branches_of", "branches", "born_into", "schedules"}
    looked_at |= {"runs_of", "starts", "also", "beside", "exits", "leasing", "told"}
    looked_at |= {"valueless", "maybe_new"}
    assert set(Footprint.__struct_fields__) == no_ids | looked_at
