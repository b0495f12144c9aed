"""`Workflow(..., context=Class)`: what a run is given is checked when it starts."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from layby import ContextError, Workflow, WorkflowError, task
from layby.core.model import NEVER
from layby.wire import json_values
from layby.workflow import plan


@task
async def ship(context): ...


class Order(TypedDict):
    number: int
    due: NotRequired[date]
    parcel: NotRequired[str]


@dataclass
class Offer:
    amount: Decimal
    express: bool = False


class Ticket(msgspec.Struct):
    seat: str
    until: datetime | None = None


class Person(pydantic.BaseModel):
    name: str
    born: date = date(1815, 12, 10)


class Anything(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = "Ada"


class Row(msgspec.Struct, array_like=True):
    a: int


class Unknowable(TypedDict):
    what: "Nowhere"  # type: ignore[name-defined] # noqa: F821


def started(kind: Any, given: Any) -> dict[str, Any]:
    """What the run begins with."""
    flow = Workflow("order", tasks=[ship], context=kind)
    command = plan.plan(flow, "r", given, "default", NEVER)
    initial = plan.read_root_param(json_values.text_of(command.param)).initial
    return {key: json_values.decode(value) for key, value in initial.items()}


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (Order, {"number": 7}, {"number": 7}),
        (Order, Order(number=7, due=date(2026, 1, 2)), {"number": 7, "due": "2026-01-02"}),
        (Offer, {"amount": "9.50"}, {"amount": "9.50"}),
        (Offer, Offer(Decimal("9.50")), {"amount": "9.50", "express": False}),
        (Ticket, Ticket("12 A"), {"seat": "12 A", "until": None}),
        (
            Ticket,
            {"seat": "1", "until": datetime(2026, 1, 2, tzinfo=UTC)},
            {"seat": "1", "until": "2026-01-02T00:00:00Z"},
        ),
        (Person, {"name": "Ada"}, {"name": "Ada"}),
        (Person, Person(name="Ada"), {"name": "Ada", "born": "1815-12-10"}),
        (Anything, None, {}),
        (Anything, {"more": [1]}, {"more": [1]}),
    ],
)
def test_what_fits_is_stored_as_json(kind, given, stored):
    """A mapping as it is, without defaults; an instance with everything it has."""
    assert started(kind, given) == stored


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            Order,
            {"number": "7"},
            (
                "context[\"number\"]: expected int, got str '7' "
                "(declared by Order of workflow 'order')"
            ),
        ),
        (Order, None, "context[\"number\"] is missing (declared by Order of workflow 'order')"),
        (
            Order,
            {"number": 7, "parcle": "x"},
            (
                "context[\"parcle\"] is not declared by Order of workflow 'order'; "
                "did you mean 'parcel'?"
            ),
        ),
        (Offer, {"amount": 9, "x": 1}, "; it has amount, express"),
        (Offer, Ticket("12 A"), "context must be Offer or a dict, got Ticket(seat="),
        (Order, [1], "context must be Order or a dict, got [1]"),
        (Order, {"number": object()}, 'context["number"] is of type object'),
        (Order, {7: 7}, "context key 7 is not a string"),
        (Person, {"name": 5}, 'context["name"]: Input should be a valid string, got int 5'),
    ],
)
def test_what_does_not_fit_names_the_key_what_was_expected_and_what_came(kind, given, message):
    """Before anything is sent."""
    with pytest.raises(ContextError) as caught:
        started(kind, given)
    assert message in str(caught.value)


def test_a_schedule_is_checked_when_it_is_made():
    """Not at three in the morning."""
    flow = Workflow("order", tasks=[ship], context=Order)
    with pytest.raises(ContextError, match=r'context\["number"\] is missing'):
        plan.schedule(
            flow,
            "s",
            "* * * * *",
            {},
            "default",
            NEVER,
            "UTC",
            catch_up=False,
            overlap="allow",
            replace=False,
        )


@pytest.mark.parametrize("kind", [int, dict, Row, "Order", list[int], {"number": int}])
def test_a_workflow_refuses_what_cannot_declare_a_context(kind):
    """When it is built."""
    with pytest.raises(
        WorkflowError, match="workflow 'order': context must be a TypedDict, a data"
    ):
        Workflow("order", tasks=[ship], context=kind)


def test_a_workflow_refuses_a_class_that_cannot_be_read():
    """With the reason."""
    with pytest.raises(WorkflowError, match="workflow 'order': context Unknowable cannot be read"):
        Workflow("order", tasks=[ship], context=Unknowable)


def test_without_a_declaration_nothing_changes():
    """Any dict of JSON values will do."""
    assert started(None, {"any": "thing"}) == {"any": "thing"}
    assert Workflow("order", tasks=[ship]).declared is None
