"""The class that says which keys a workflow's context has, and the check when a run starts."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from layby.errors import ContextError, UsageError, WorkflowError
from layby.wire.typed_values import (
    Misfit,
    is_declarable,
    is_of,
    keys_of,
    plain_of,
    read_typed,
    reader_of,
)
from layby.workflow.names import close_match

FORMS = "a TypedDict, a dataclass, a msgspec Struct or a pydantic model"


class DeclaredContext:
    """Checks what runs of one workflow are given."""

    def __init__(self, kind: type[Any], flow_name: str) -> None:
        self.kind = kind
        self._by = f"declared by {kind.__name__} of workflow '{flow_name}'"

    def values_of(self, given: object) -> object:
        """What a run is given, as JSON values: an instance of the class, or a mapping."""
        if given is None:
            return {}
        if isinstance(given, Mapping):
            mapping = cast("Mapping[object, object]", given)
            return {key: _plain(value) for key, value in mapping.items()}
        if not is_of(self.kind, given):
            raise ContextError(
                f"context must be {self.kind.__name__} or a dict, got {given!r} ({self._by})"
            )
        return plain_of(given)

    def check(self, encoded: Mapping[str, bytes]) -> None:
        """Raise unless these keys and values fit. Defaults are not added to what was given."""
        known = keys_of(self.kind)
        if known is not None:
            self._refuse_unknown(encoded, sorted(known))
        try:
            read_typed(self.kind, as_object(encoded), "context")
        except Misfit as misfit:
            raise ContextError(f"{misfit} ({self._by})") from None

    def _refuse_unknown(self, given: Iterable[str], known: list[str]) -> None:
        for key in given:
            if key not in known:
                hint = close_match(key, known) or f"; it has {', '.join(known) or 'no keys'}"
                raise ContextError(f'context["{key}"] is not {self._by}{hint}')


def check_declared(kind: type[Any] | None, flow_name: str) -> DeclaredContext | None:
    """Checked when the workflow is built: later, every start would fail."""
    if kind is None:
        return None
    if not is_declarable(kind):
        raise WorkflowError(f"workflow '{flow_name}': context must be {FORMS}, got {kind!r}")
    try:
        reader_of(kind)
    except UsageError as error:
        raise WorkflowError(f"workflow '{flow_name}': context {error}") from None
    return DeclaredContext(kind, flow_name)


def as_object(encoded: Mapping[str, bytes]) -> bytes:
    """One JSON object of values that are JSON already."""
    return msgspec.json.encode({key: msgspec.Raw(value) for key, value in encoded.items()})


def _plain(value: object) -> object:
    """In its JSON form, if it has one: a datetime becomes text, as the class reads it."""
    try:
        return plain_of(value)
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        return value  # refused later, by name
