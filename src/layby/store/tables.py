"""Tables as the structs of core describe them: column names follow field names and order."""

from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.inspect import (
    BoolType,
    Field,
    IntType,
    StructType,
    UnionType,
    VarTupleType,
    type_info,
)

from layby.core.limit import Limit
from layby.core.model import Holder, Listener, Message, Promise, Pruning, PublishedFlow, Task, Wait
from layby.core.schedule_row import Schedule


class Column(Struct, frozen=True):
    name: str
    field: str
    sort: str
    """text | whole | bool | json: how it travels between SQL and a row."""


class Table(Struct, frozen=True):
    """The columns of one struct, in field order."""

    name: str
    row: type[Struct]
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def table(name: str, row: type[Struct], key: tuple[str, ...], prefix: str = "") -> Table:
    info = type_info(row)
    assert isinstance(info, StructType)
    return Table(name, row, tuple(_column(each, prefix) for each in info.fields), key)


def getter(columns: tuple[Column, ...]) -> Any:
    """A function from a row struct to the tuple of these columns, as bound to a statement."""
    return attrgetter(*(f"{c.field}_text" if c.sort == "json" else c.field for c in columns))


def _column(info: Field, prefix: str) -> Column:
    name = info.name if info.name == "id" else prefix + info.name
    return Column(name, info.name, _sort(info))


def _sort(info: Field) -> str:
    sorts = info.type.types if isinstance(info.type, UnionType) else (info.type,)
    for sort, name in ((BoolType, "bool"), (VarTupleType, "json"), (IntType, "whole")):
        if any(isinstance(each, sort) for each in sorts):
            return name
    return "text"


PROMISES: Final = table("promises", Promise, key=("id",))
TASKS: Final = table("promises", Task, key=("id",), prefix="task_")
WAITS: Final = table("waits", Wait, key=("awaited", "awaiter"))
LISTENERS: Final = table("listeners", Listener, key=("awaited", "address"))
MESSAGES: Final = table("messages", Message, key=("id", "kind", "address"))
LEASED_MESSAGES: Final = Table(
    MESSAGES.name,
    Message,
    (
        *MESSAGES.columns,
        Column("offered_by", "offered_by", "text"),
        Column("offered_until", "offered_until", "whole"),
    ),
    MESSAGES.key,
)
"""Messages with who offers them: a lease is of no concern to core."""
HOLDERS: Final = table("holders", Holder, key=("pid", "incarnation"))
SCHEDULES: Final = table("schedules", Schedule, key=("id",))
PRUNING: Final = table("pruning", Pruning, key=("id",))
LIMITS: Final = table("limits", Limit, key=("name",))
FLOWS: Final = table("flows", PublishedFlow, key=("group", "name"))

ROWS: Final = {
    each.row: each
    for each in (
        PROMISES,
        TASKS,
        WAITS,
        LISTENERS,
        MESSAGES,
        HOLDERS,
        SCHEDULES,
        FLOWS,
        PRUNING,
        LIMITS,
    )
}
_TABLES: Final = (*ROWS.values(), LEASED_MESSAGES)
SORTS: Final = {column.name: column.sort for each in _TABLES for column in each.columns} | {
    "key": "text",
    "delta": "whole",
}
"""Of a column of any table; those of the same name are of the same sort."""

PROMISE_MOVES: Final = PROMISES.columns[PROMISES.names.index("state") :]
TASK_MOVES: Final = TASKS.columns[TASKS.names.index("task_state") :]

encode = msgspec.json.Encoder().encode
