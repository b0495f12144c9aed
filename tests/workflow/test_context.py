import copy
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.errors import ContextError
from layby.wire.json_values import decode, encode
from layby.workflow.context import Context
from layby.workflow.merge import Delta, View

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def given_(**values) -> Context:
    """A context as a task gets it, with these values from the tasks before."""
    return Context.over(View.initial({key: encode(value) for key, value in values.items()}))


def test_it_is_a_dict():
    context = given_(a=1)
    context["b"] = [1, 2]
    assert context == {"a": 1, "b": [1, 2]}
    assert context == {"a": 1, "b": [1, 2]}
    assert context != {"a": 1}
    assert context == given_(a=1, b=[1, 2])
    assert (list(context), len(context), "a" in context, 7 in context) == (
        ["a", "b"],
        2,
        True,
        False,
    )
    assert context.get("c", "default") == "default"
    assert context.pop("a") == 1
    assert list(context.items()) == [("b", [1, 2])]
    assert repr(context) == "Context({'b': [1, 2]})"
    assert {**context} == {"b": [1, 2]}
    with pytest.raises(KeyError, match="a"):
        context["a"]
    with pytest.raises(KeyError, match="a"):
        del context["a"]
    with pytest.raises(TypeError):
        hash(context)


def test_set_insert_update_remove():
    context = given_(a=1)
    context.set("b", 2)
    context.insert("c", 3)
    context.update("a", 10)
    context.update({"d": 4})
    context.update(e=5)
    context.update([("f", 6)])
    assert context.remove("b") == 2
    assert context.remove("b") is None
    assert context.to_dict() == {"a": 10, "c": 3, "d": 4, "e": 5, "f": 6}


def test_insert_and_update_say_what_to_do_instead():
    context = given_(a=1)
    with pytest.raises(ContextError, match="already has 'a': use set or update"):
        context.insert("a", 2)
    with pytest.raises(ContextError, match="no 'b' to update: use set or insert"):
        context.update("b", 2)
    assert not context.changes()


@pytest.mark.parametrize(
    ("change", "delta"),
    [
        (lambda c: None, Delta()),
        (lambda c: c["nested"]["list"][0], Delta()),
        (lambda c: c.set("number", 1), Delta()),
        (lambda c: c.set("number", 2), Delta({"number": b"2"})),
        (lambda c: c["nested"]["list"].append(3), Delta({"nested": b'{"list":[1,3]}'})),
        (lambda c: c.remove("number"), Delta(removed=("number",))),
        (lambda c: c.set("number", c.remove("number")), Delta()),
        (lambda c: c.set("new", c.remove("number")), Delta({"new": b"1"}, ("number",))),
        (lambda c: (c.set("new", 1), c.remove("new")), Delta()),
        (lambda c: c.set("number", 1.0), Delta({"number": b"1.0"})),
        (lambda c: c.set("number", True), Delta({"number": b"true"})),
        (lambda c: c.set("pair", (1, (2,))), Delta({"pair": b"[1,[2]]"})),
        (lambda c: c.clear(), Delta(removed=("nested", "number"))),
    ],
)
def test_a_task_stores_only_what_it_changed(change, delta):
    context = given_(number=1, nested={"list": [1]})
    change(context)
    assert context.changes() == delta
    assert context.changes() == delta


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON), st.sets(st.text()))
def test_changes_lead_from_what_was_to_what_is(before, updated, removed):
    context = Context.over(View.initial({key: encode(value) for key, value in before.items()}))
    context.update(updated)
    for key in removed:
        context.remove(key)
    expected = {key: value for key, value in {**before, **updated}.items() if key not in removed}
    after = View.initial({key: encode(value) for key, value in before.items()})
    after = after.after(context.changes(), "writer")
    assert context == expected
    assert {key: decode(value) for key, value in after.items()} == expected


def test_values_of_the_view_are_never_shared():
    view = View.initial({"list": b"[1]"})
    first, second = Context.over(view), Context.over(view)
    first["list"].append(2)
    assert second["list"] == [1]


def test_to_dict_shares_nothing():
    context = given_(list=[1])
    context.to_dict()["list"].append(2)
    assert context["list"] == [1]


def test_a_context_can_be_sent_and_copied():
    context = given_(a=1)
    context["b"] = 2
    for other in (pickle.loads(pickle.dumps(context)), copy.deepcopy(context)):
        assert other == {"a": 1, "b": 2}
        assert other.changes() == Delta({"b": b"2"})


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, {"a": 1}),
        (7, {"a": 1}),
        ({"b": 2}, {"a": 1, "b": 2}),
        (Context({"b": 2}), {"a": 1, "b": 2}),
    ],
)
def test_a_returned_dict_is_merged(returned, expected):
    context = given_(a=1)
    context.absorb(returned)
    assert context == expected
    context.absorb(context)
    assert context == expected


def test_a_key_that_is_not_read_is_not_decoded():
    context = Context.over(View.initial({"broken": b"{", "good": b"1"}))
    context["good"] += 1
    assert context.changes() == Delta({"good": b"2"})


LOOP: list = []
LOOP.append(LOOP)
DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r'context\["k"\] is nan, which JSON does not have: use None'),
        ([1, {"x": float("inf")}], r'context\["k"\]\[1\]\["x"\] is inf'),
        (b"abc", r'context\["k"\] is of type bytes, .*decode it, or store base64 text'),
        ({"deep": [b"abc"]}, r'context\["k"\]\["deep"\]\[0\] is of type bytes'),
        ({1, 2}, r"of type set, which JSON does not have: use sorted\(\.\.\.\)"),
        ([{1}], r'context\["k"\]\[0\] is of type set'),
        ({1: 2}, r"context\[\"k\"\] has the key 1: JSON keys are strings, use '1'"),
        ({"a": {None: 2}}, r"context\[\"k\"\]\[\"a\"\] has the key None"),
        (2**64, "int beyond 64 bits, which other languages misread: store it as a string"),
        ([-(2**63) - 1], r'context\["k"\]\[0\] is an int beyond 64 bits'),
        (datetime(2026, 11, 15, tzinfo=UTC), r"of type datetime, .* use \.isoformat\(\)"),
        ([UUID(int=0)], r"of type UUID, .* use str\(\.\.\.\)"),
        ([Decimal(1)], "of type Decimal"),
        (object(), "of type object, .* use a dict, list"),
        ([object()], r'context\["k"\]\[0\] is of type object'),
        (plain := (lambda: None), "of type function"),
        ("\ud800", r'context\["k"\] is broken text'),
        (["\ud800"], r'context\["k"\]\[0\] is broken text'),
        ({"\ud800": 1}, r'a key of context\["k"\] is broken text'),
        (LOOP, r'context\["k"\] is nested too deeply, or contains itself'),
        (DEEP, r'context\["k"\] is nested too deeply'),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_not_json_is_named_with_its_path(value, message):
    with pytest.raises(ContextError, match=message):
        Context({"k": value}).changes()


def test_what_cannot_be_json_is_refused_where_it_is_set():
    """The traceback then points at the line that did it."""
    context = Context()
    with pytest.raises(ContextError, match="set"):
        context["k"] = {1}
    assert context == {}


@pytest.mark.parametrize("key", [7, None, b"k", "\ud800"])
def test_keys_are_texts(key):
    with pytest.raises(ContextError, match="key"):
        Context()[key] = 1


def test_the_initial_values_are_checked_alike():
    with pytest.raises(ContextError, match=r'context\["k"\]'):
        Context({"k": object()})
    with pytest.raises(ContextError, match="key"):
        Context({7: 1})  # pyright: ignore[reportArgumentType]


def test_a_context_too_large_names_its_largest_keys():
    context = given_(small=1, old="x" * 400_000)
    context["big"] = "y" * 700_000
    with pytest.raises(
        ContextError, match=r"1,100,0\d\d bytes.*'big' \(700,0\d\d bytes\), 'old' \(400,0"
    ):
        context.changes()
    context.remove("old")
    assert set(context.changes().changed) == {"big"}


def test_only_the_size_at_the_end_counts():
    context = given_(old="x" * 900_000)
    context["old"] = "y" * 900_000
    assert context.changes()
