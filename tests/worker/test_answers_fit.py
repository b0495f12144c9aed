"""What core accepts as an answer, the task that asked can read as its class, and the reverse."""

import datetime as dt
import enum
from dataclasses import field, make_dataclass
from itertools import count
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from layby.core.answer_schema import answer_problem, schema_problem
from layby.wire.typed_values import Misfit, json_schema_of, read_typed


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Part(TypedDict, total=False):
    at: dt.datetime
    count: int


LEAVES: list[Any] = [
    int,
    float,
    bool,
    str,
    None,
    Any,
    Size,
    Part,
    Literal["a", 1],
    dt.date,
    dt.datetime,
    dt.time,
    Annotated[dt.datetime, Meta(tz=True)],
    Annotated[dt.datetime, Meta(tz=False)],
    Annotated[dt.time, Meta(tz=True)],
    Annotated[int, Meta(ge=0, lt=100)],
    Annotated[float, Meta(gt=0, le=1e2)],
    Annotated[str, Meta(min_length=1, max_length=2)],
    Annotated[list[int], Meta(min_length=1, max_length=2)],
    Annotated[dt.datetime | None, Meta(title="When")],
    None | dt.datetime,
    int | None | dt.time,
    float | str,
]
TEXTS = [
    *("", "a", "äö", "x🎈y", "2026-01-01", "20260101", "2026-W01-1", "2026-02-30", "0000-01-01"),
    *(
        "2026-01-01T00:00:00",
        "2026-01-01t00:00:00z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T24:00:00Z",
    ),
    *("2026-06-30T23:59:60Z", "2026-01-01T00Z", "2026-01-01T00:00", "2026-01-01T00:00:00,5Z"),
    *("20260101T000000Z", "2026-01-01T00:00:00+0100", "2026-01-01T00:00:00.1234567+01:00"),
    *("10:00", "10:00:00", "10:00:00Z", "10:00:00+01:00", "24:00:00", "100000", "1", "true"),
]


_numbers = count()


def fresh() -> str:
    """msgspec tells classes apart by their names in a schema."""
    return f"Kind{next(_numbers)}"


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: tuple[kind, ...]),
        inner.map(lambda kind: dict[str, kind]),
        pairs.map(lambda two: msgspec.defstruct(fresh(), [("a", two[0]), ("b", two[1], None)])),
        pairs.map(
            lambda two: msgspec.defstruct(
                fresh(),
                [("a_b", two[0]), ("b", two[1])],
                rename="camel",
                forbid_unknown_fields=True,
            )
        ),
        pairs.map(
            lambda two: make_dataclass(fresh(), [("a", two[0]), ("b", two[1], field(default=None))])
        ),
    )


KINDS = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)
SCALARS = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from([None, True, False, 0, 1, 2, -1, 1.0, 1e2, -0.0, 0.5, 10**30, 10**400, 1e308]),
    st.text(max_size=3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
KEYS = st.sampled_from(["a", "b", "aB", "at", "count", "z"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Any, Any]:
    """A class, and a value that often nearly fits."""
    kind = draw(KINDS)
    return kind, draw(_near(msgspec.inspect.type_info(kind)) | VALUES)


def _near(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case msgspec.inspect.CollectionType():
            return st.lists(_near(info.item_type), max_size=3)
        case msgspec.inspect.DictType():
            return st.dictionaries(KEYS, _near(info.value_type), max_size=2)
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType():
            return st.fixed_dictionaries(
                {each.encode_name: _near(each.type) for each in info.fields}
            )
        case _:
            return SCALARS


def _is_read(kind: Any, value: Any) -> bool:
    try:
        read_typed(kind, msgspec.json.encode(value), "the answer")
    except Misfit:
        return False
    return True


def check(kind: Any, value: Any) -> None:
    """Both say the same of the JSON of a value."""
    schema = json_schema_of(kind)
    assert schema_problem(schema) is None
    problem = answer_problem(schema, msgspec.json.decode(msgspec.json.encode(value)))
    assert (problem is None) == _is_read(kind, value), (problem, schema)


@settings(max_examples=300)
@given(asked())
@example((float, 10**400))
@example((dict[str, dt.time | None], {"a": "10:00"}))
def test_core_accepts_what_the_task_can_read(case: tuple[Any, Any]) -> None:
    """Neither more, since nobody can answer again, nor less."""
    check(*case)


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_each_kind_with_each_edge(kind: Any) -> None:
    """All the pairs in which they once differed."""
    for value in (*TEXTS, 1e2, 1.0, -0.0, True, 10**30, 10**400, {"at": "2026-01-01"}, [1.0], [1]):
        check(kind, value)
