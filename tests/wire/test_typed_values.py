"""JSON read as classes that users declare."""

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.errors import UsageError
from layby.wire.typed_values import Misfit, is_declarable, is_of, keys_of, plain_of, read_typed


class Line(TypedDict):
    sku: str


class Cart(TypedDict):
    order: int
    lines: list[Line]
    notes: NotRequired[dict[str, int]]


@dataclass
class Offer:
    amount: int
    express: bool = False
    total: int = field(init=False, default=0)

    def __post_init__(self):
        if self.amount < 0:
            raise ValueError("an offer costs something")


class Ticket(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    seat_number: Annotated[int, msgspec.Meta(ge=1)]
    valid_until: datetime | None = None


class Tagged(msgspec.Struct, tag=True):
    amount: int


class Row(msgspec.Struct, array_like=True):
    a: int


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(default=0, alias="years")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str


class Wide(pydantic.BaseModel):
    k0: int
    k1: int
    k2: int
    k3: int
    k4: int


@pydantic.dataclasses.dataclass
class Pair:
    one: int
    two: int = 2


class Crew(TypedDict):
    people: list[Person]


def read(kind: Any, value: object) -> Any:
    return read_typed(kind, msgspec.json.encode(value), "context")


@pytest.mark.parametrize(
    ("kind", "value", "read_as"),
    [
        (Cart, {"order": 7, "lines": []}, {"order": 7, "lines": []}),
        (Offer, {"amount": 3}, Offer(3)),
        (
            Ticket,
            {"seatNumber": 1, "validUntil": "2026-01-01T00:00:00Z"},
            Ticket(1, datetime(2026, 1, 1, tzinfo=UTC)),
        ),
        (Person, {"name": "Ada", "years": 36}, Person(name="Ada", years=36)),
        (Pair, {"one": 1}, Pair(1)),
        (Crew, {"people": [{"name": "Bo"}]}, {"people": [Person(name="Bo")]}),
        (int, 7, 7),
        (list[int], [1, 2], [1, 2]),
    ],
)
def test_what_fits_is_read_and_can_be_written_again(kind, value, read_as):
    """Back as JSON values it reads the same."""
    assert read(kind, value) == read_as
    assert read(kind, plain_of(read_as)) == read_as


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Cart, {"order": "x", "lines": []}, "context[\"order\"]: expected int, got str 'x'"),
        (Cart, {"order": 7}, 'context["lines"] is missing'),
        (
            Cart,
            {"order": 7, "lines": [{"sku": "a"}, {"sku": 5}]},
            'context["lines"][1]["sku"]: expected str, got int 5',
        ),
        (Cart, {"order": 7, "lines": [{}]}, 'context["lines"][0]["sku"] is missing'),
        (
            Cart,
            {"order": 7, "lines": [], "notes": {"a.b": "c"}},
            'context["notes"][...]: expected int, got str',
        ),
        (Cart, {"order": "x" * 99, "lines": []}, "got str 'xxxxx"),
        (Offer, {"amount": -1}, "context: an offer costs something"),
        (Ticket, {"seatNumber": 0}, 'context["seatNumber"]: expected int >= 1, got 0'),
        (
            Ticket,
            {"seatNumber": 1, "validUntil": "soon"},
            "context[\"validUntil\"]: Invalid RFC3339 encoded datetime, got 'soon'",
        ),
        (Person, {}, 'context["name"] is missing'),
        (Person, {"name": 5, "years": "old"}, 'context["name"]: Input should be a valid string'),
        (Person, {"name": 5, "years": "old"}, "got str 'old'"),
        (Crew, {"people": [{"name": 5}]}, 'context["people"]'),
        (int, "x", "context: expected int, got str 'x'"),
    ],
)
def test_a_misfit_says_where_what_was_expected_and_what_came(kind, value, message):
    """In one line."""
    with pytest.raises(Misfit) as caught:
        read(kind, value)
    assert message in str(caught.value)


def test_pydantic_tells_a_few_errors_at_once():
    """It finds all of them; a message names three."""
    with pytest.raises(Misfit, match=r'context\["k2"\] is missing; and 2 more$'):
        read(Wide, {})


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (Cart, {"order", "lines", "notes"}),
        (Offer, {"amount", "express"}),
        (Ticket, {"seatNumber", "validUntil"}),
        (Person, {"name", "age", "years"}),
        (Pair, {"one", "two"}),
        (Open, None),
        (Tagged, {"type", "amount"}),
    ],
)
def test_the_keys_a_class_declares(kind, keys):
    """As they stand in JSON; pydantic's names and aliases both, since it may take either."""
    assert is_declarable(kind)
    assert keys_of(kind) == keys


@pytest.mark.parametrize("kind", [int, dict, list[int], Row, "Cart", Cart(order=1, lines=[]), None])
def test_what_cannot_declare_a_context(kind):
    """A class that maps keys to types can; nothing else."""
    assert not is_declarable(kind)


def test_instances():
    """Those of a TypedDict are dicts like any other."""
    assert is_of(Offer, Offer(1))
    assert not is_of(Offer, {"amount": 1})
    assert not is_of(Cart, {"order": 1, "lines": []})


class Unknowable(TypedDict):
    what: "Nowhere"  # type: ignore[name-defined] # noqa: F821


class Ambiguous(TypedDict):
    what: list[int] | list[str]


@pytest.mark.parametrize("kind", [Unknowable, Ambiguous])
def test_a_class_that_no_json_can_be_read_as(kind):
    """Said when it is first used, with the reason."""
    with pytest.raises(UsageError, match=f"{kind.__name__} cannot be read from JSON: .*"):
        read(kind, {})


@given(order=st.integers(-(2**63), 2**63), skus=st.lists(st.text()))
def test_whatever_fits_comes_back(order, skus):
    """Reading changes no value."""
    cart = {"order": order, "lines": [{"sku": sku} for sku in skus]}
    assert read(Cart, cart) == cart


def test_pydantic_is_imported_by_its_users_only():
    """Nobody pays for it who does not have a model."""
    code = "import layby, sys; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
