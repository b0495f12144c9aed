"""The limit that belongs to a join: how many of its items may be open at once.

It is made with the join, has a name that nobody else can give, and ends with it.
"""

from typing import TYPE_CHECKING

from layby.core.limit import PRIVATE
from layby.core.model import Promise
from layby.core.tag_names import LIMITED, has_tag

if TYPE_CHECKING:
    from layby.core.draft import Draft


def own_limit(join_id: str) -> str:
    """The name of the limit that belongs to a join, if it has one."""
    return f"{PRIVATE}{join_id}"


def is_limited(promise: Promise) -> bool:
    return has_tag(promise.tags, LIMITED)


def end_limit(d: "Draft", join: Promise, *, is_last: bool) -> None:
    """Nobody else begins under the limit of a join that has ended.

    `is_last`: no items are left that wait for it. Those whose bodies have not ended keep it.
    """
    if not is_limited(join) or not d.has_limit(own_limit(join.id)):
        return
    limit = d.limit(own_limit(join.id)).undefined()
    if is_last and limit.is_idle:
        d.drop_limit(limit.name)
    else:
        d.put_limit(limit)
