"""`context.typed(Class)`: the context as one of the user's classes."""

from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby import Context
from layby.errors import ContextError, UsageError
from layby.wire.json_values import encode
from layby.workflow.merge import View


class Order(TypedDict):
    number: int
    tags: NotRequired[list[str]]


class Named(TypedDict):
    name: str


@dataclass
class OrderData:
    number: int
    tags: list[str] = field(default_factory=list)


class OrderStruct(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    tags: list[str] = []


class OrderModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int
    tags: list[str] = []


KINDS = [Order, OrderData, OrderStruct, OrderModel]
OBJECTS = KINDS[1:]


def given_(**values: Any) -> Context:
    return Context.over(View.initial({key: encode(value) for key, value in values.items()}))


def number_of(order: Any) -> int:
    return order["number"] if isinstance(order, dict) else order.number


def tags_of(order: Any) -> list[str]:
    return order["tags"] if isinstance(order, dict) else order.tags


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_what_the_context_is_now(kind):
    """What earlier tasks left, and what this one has set; keys it does not declare are left out."""
    context = given_(number=1, tags=["a"], other=True)
    assert number_of(context.typed(kind)) == 1
    context["number"] = 2
    context["tags"].append("b")
    order = context.typed(kind)
    assert (number_of(order), tags_of(order)) == (2, ["a", "b"])
    assert type(order) is (dict if kind is Order else kind)
    assert "other" in context


@pytest.mark.parametrize("kind", OBJECTS)
def test_defaults_are_in_the_copy_only(kind):
    """The context holds what was given and what tasks have set."""
    context = given_(number=1)
    assert context.typed(kind).tags == []
    assert "tags" not in context
    assert not context.changes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_names_the_key_and_the_class(kind):
    """Checked when it is read: another task may have set anything."""
    context = given_(number="one")
    with pytest.raises(ContextError, match=r'^context\["number"\]: .*one') as caught:
        context.typed(kind)
    assert str(caught.value).endswith(f"(declared by {kind.__name__})")
    del context["number"]
    with pytest.raises(ContextError, match=r'^context\["number"\] is missing'):
        context.typed(kind)


@pytest.mark.parametrize("kind", [int, dict, "Order", None])
def test_other_classes_are_refused(kind):
    """With what it takes."""
    with pytest.raises(
        UsageError, match="a TypedDict, a dataclass, a msgspec Struct or a pydantic"
    ):
        given_(number=1).typed(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_copy_that_nobody_stores_is_an_error(kind):
    """Nothing vanishes without a word: at the end of the task, and when it is read again."""
    context = given_(number=1, tags=[])
    tags_of(context.typed(kind)).append("lost")
    message = rf"'tags' of the {kind.__name__} .* set context\[\"tags\"\], or return the"
    with pytest.raises(ContextError, match=message):
        context.changes()
    with pytest.raises(ContextError, match=message):
        context.typed(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_copy_that_is_returned_is_stored(kind):
    """Only what was changed: neither defaults nor keys that others have set since."""
    context = given_(number=1, tags=["a"], other=True)
    order: Any = context.typed(kind)
    if kind is Order:
        order["number"] = 7
    else:
        order.number = 7
    context["tags"] = ["b"]
    context.absorb(order)
    assert context == {"number": 7, "tags": ["b"], "other": True}
    assert context.changes().changed == {"number": b"7", "tags": b'["b"]'}


def test_several_classes_at_once():
    """Each task reads what it needs."""
    context = given_(number=1, tags=[], name="Ada")
    assert context.typed(Named)["name"] == "Ada"
    changed = context.typed(OrderData)
    changed.number = 8
    with pytest.raises(ContextError, match="'number' of the OrderData"):
        context.changes()


@given(number=st.integers(-(2**63), 2**63), tags=st.lists(st.text()))
def test_reading_stores_nothing(number, tags):
    """However often, by whatever class."""
    context = given_(number=number, tags=tags)
    for kind in (*KINDS, *KINDS):
        order = context.typed(kind)
        assert (number_of(order), tags_of(order)) == (number, tags)
    assert not context.changes()
