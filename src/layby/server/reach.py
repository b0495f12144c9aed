"""Whether a token with a prefix covers a request: by the ids and the groups that it names.

A request that can reach rows it does not name by id (a search, a list, an explanation that shows
what else is waited for, the debug surface) cannot be bounded by a prefix: its sender is another.

The protocol's own table names fewer ids: of a fence only the task's, of a callback only the
awaited's. A token could then settle any promise through a fence, so here every id counts,
wherever it stands in the request.
"""

from typing import Any, Final

from msgspec.structs import replace

from layby.core.commands import DeferTask, Take
from layby.core.kinds import BaseRequest, Sender
from layby.core.limits import GetLimit
from layby.wire.decode import KINDS

BOUNDED: Final = (Sender.CLIENT, Sender.WORKER)


def is_within(kind: str, body: object, prefix: str, groups: frozenset[str]) -> bool:
    """A body that could not be read names nothing and will do nothing: it may have its 400."""
    declared = KINDS.get(kind)
    if declared is None or declared.sender not in BOUNDED:
        return False
    if not isinstance(body, BaseRequest):
        return True
    if declared.sender is Sender.WORKER and not groups:
        return False
    if not all(each in groups for each in body.named_groups()):
        return False
    return all(each.startswith(prefix) for each in body.named_ids())


def bounded(body: Any, prefix: str) -> Any:
    """The same request, whose takes hand out only ids with this prefix; a trigger asks for it, and
    of those who hold a limit the others are not named.
    """
    if isinstance(body, DeferTask):
        body = replace(body, principal=prefix)
    if isinstance(body, GetLimit) and not body.prefix.startswith(prefix):
        return replace(body, prefix=prefix)
    take = body.asks if isinstance(body, BaseRequest) else None
    if take is None or take.prefix.startswith(prefix):
        return body
    taken = replace(take, prefix=prefix)
    return taken if isinstance(body, Take) else replace(body, take=taken)
