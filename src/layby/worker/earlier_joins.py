"""Where a call of `map` stands: its join, and those that the same call has left before.

After a try that has failed, a join that failed before that is followed by another one. A later life
of the run begins with another one, too. What earlier ones of the same task have left is taken over
by items that are the same; results of an earlier life only if its items were given the same context
as well, since another one may have been the reason to run the task again.
"""

from collections.abc import AsyncIterator
from itertools import count
from urllib.parse import quote

from msgspec import Struct

from layby.core import values
from layby.core.joins import MAP, MAX_EARLIER, mapped_by
from layby.core.model import Promise
from layby.program import Mapped, may_be_one_function
from layby.worker.attempt import Attempt


class JoinPlace(Struct, frozen=True):
    """The join of a call, whether it exists or not."""

    id: str
    is_there: bool = False
    earlier: tuple[str, ...] = ()
    """Joins whose results count, the latest first."""
    keeps: tuple[str, ...] = ()
    """Joins whose items have recorded what the same items keep, the latest first."""


class JoinSearch:
    """Of the joins of one call, looked at from one try of its caller."""

    def __init__(self, attempt: Attempt, key: str, mapped: Mapped) -> None:
        self._attempt = attempt
        self._key = key
        self._mapped = mapped
        self._failed: list[Promise] = []
        """Joins of this life that this try has to repeat, the first one first."""
        self.id = self._id(1)
        """Where it is, as far as that is known."""

    async def find(self, *, may_be_there: bool) -> JoinPlace:
        """`may_be_there`: an earlier run of the body, or an earlier call in this one, may have
        made it. What counts then is the context that it was made with.
        """
        join = await self._own() if may_be_there else None
        before = [each async for each in self._of_earlier_lives()]
        param = values.text_of(self._mapped.param) if join is None else join.param
        is_same_input = self._attempt.loaded.is_same_input
        fit = [each for each in before if is_same_input(each.param, param)]
        failed = self._fitting(self._failed)
        return JoinPlace(self.id, join is not None, _ids(failed, fit), _ids(failed, before))

    async def _own(self) -> Promise | None:
        for number in count(1):
            self.id = self._id(number)
            found = await self._attempt.read(self.id)
            if found is None or not self._attempt.replay.must_be_repeated(found):
                return found
            self._failed.append(found)
        raise AssertionError  # the loop never ends

    async def _of_earlier_lives(self) -> AsyncIterator[Promise]:
        for caller in self._attempt.replay.earlier:
            found: list[Promise] = []
            for number in count(1):
                join = await self._attempt.read(join_id_of(caller, self._key, number))
                if join is None:
                    break
                found.append(join)
            for join in self._fitting(found):
                yield join

    def _fitting(self, joins: list[Promise]) -> list[Promise]:
        """Those of the same task, the latest first."""
        name = self._mapped.name
        return [each for each in reversed(joins) if may_be_one_function(mapped_by(each), name)]

    def _id(self, number: int) -> str:
        return join_id_of(self._attempt.id, self._key, number)


def join_id_of(caller: str, key: str, number: int) -> str:
    """A key may be any text; in an id, ':' and '/' have a meaning."""
    again = "" if number == 1 else f"+{number}"
    return f"{caller}:{MAP}{quote(key.removeprefix('map-'), safe='')}{again}"


def _ids(*joins: list[Promise]) -> tuple[str, ...]:
    return tuple(join.id for each in joins for join in each)[:MAX_EARLIER]
