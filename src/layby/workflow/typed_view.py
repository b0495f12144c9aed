"""A context as a class of the user's, and whether that copy was changed afterwards."""

from collections.abc import Mapping
from typing import Any

from layby.errors import ContextError, UsageError
from layby.wire.json_values import encode
from layby.wire.typed_values import Misfit, is_declarable, keys_of, plain_of, read_typed
from layby.workflow.declared_context import FORMS, as_object


class TypedView:
    """One copy of a context, as `kind` reads it."""

    __slots__ = ("_before", "instance", "kind")

    def __init__(self, kind: type[Any], encoded: Mapping[str, bytes]) -> None:
        if not is_declarable(kind):
            raise UsageError(f"context.typed() takes {FORMS}, got {kind!r}")
        declared = keys_of(kind)
        known = {key: encoded[key] for key in encoded if declared is None or key in declared}
        try:
            self.instance = read_typed(kind, as_object(known), "context")
        except Misfit as misfit:
            raise ContextError(f"{misfit} (declared by {kind.__name__})") from None
        self.kind = kind
        self._before = self._written()

    def check_unchanged(self) -> None:
        changed = self._changed()
        if changed:
            key = next(iter(changed))
            raise ContextError(
                f"'{key}' of the {self.kind.__name__} from context.typed() was changed, which "
                f'stores nothing: set context["{key}"], or return the {self.kind.__name__}'
            )

    def take_changes(self) -> dict[str, Any]:
        """What was changed since it was made; from now on that counts as stored."""
        changed = self._changed()
        self._before = self._written()
        return changed

    def _changed(self) -> dict[str, Any]:
        after = plain_of(self.instance)
        return {
            key: value
            for key, value in after.items()
            if encode(value, f'context["{key}"]') != self._before.get(key)
        }

    def _written(self) -> dict[str, bytes]:
        """Each key as JSON. A dict of them would change with the instance."""
        plain = plain_of(self.instance)
        return {key: encode(value, f'context["{key}"]') for key, value in plain.items()}
