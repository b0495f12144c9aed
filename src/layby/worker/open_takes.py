"""Which requests that may bring tasks have not been answered yet, and what they must not bring.

A task that the store has given to this worker, and that the worker does not know, is on its way as
long as such a request is open that was sent before the store was asked: unless that lasts so long
that the task is given up, and handed back. Or it is taken away before its answer comes. Such an
answer may still come: its tasks are somebody else's by then.
"""

from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from layby.core.replies import Claim, Reply, TakeData, TakingData

MOST_GIVEN_UP: Final = 1_000
"""How many tasks are remembered whose answers may still come: the oldest are forgotten."""


class GivenUp(NamedTuple):
    """This claim of a task, and each before it, does not begin."""

    version: int
    mark: int
    """Only what was sent by then may bring it: a later answer knows of it."""


class OpenTakes:
    """A request counts as the object it is: it must live until it is answered."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """In order of sending."""
        self.sent = 0
        """How many there have been: a mark for `are_answered`."""
        self._void = 0
        """Answers to those that were sent by then bring nothing."""
        self._given_up: dict[str, GivenUp] = {}
        """In order of their marks."""

    def begin(self, request: Any) -> None:
        self.sent += 1
        self._numbers[id(request)] = self.sent
        while self._given_up and self.are_answered(next(iter(self._given_up.values())).mark):
            del self._given_up[next(iter(self._given_up))]

    def end(self, request: Any, reply: Reply | None = None) -> Reply | None:
        """It was answered, or nobody waits for it now. Returns the answer without those of its
        tasks that are not ours any more.
        """
        number = self._numbers.pop(id(request), 0)
        if reply is None or not (self._given_up or number <= self._void):
            return reply
        data = reply.data
        if isinstance(data, TakeData):
            return replace(reply, data=self._ours(data, number))
        if isinstance(data, TakingData):
            return replace(reply, data=replace(data, taken=self._ours(data.taken, number)))
        return reply

    def are_answered(self, mark: int) -> bool:
        """Whether all are over that had been sent when `sent` was `mark`."""
        oldest = next(iter(self._numbers.values()), None)
        return oldest is None or oldest > mark

    def give_up(self, task_id: str, version: int) -> bool:
        """Its answer is not waited for any longer: the task is handed back, or was taken away.

        Whether there is such an answer.
        """
        if self.are_answered(self.sent):
            return False
        self._given_up.pop(task_id, None)
        self._given_up[task_id] = GivenUp(version, self.sent)
        if len(self._given_up) > MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        return True

    def give_up_all(self) -> None:
        """Whatever was given to us so far belongs to others now."""
        self._void = self.sent

    def _ours(self, data: TakeData, number: int) -> TakeData:
        if number <= self._void:
            return replace(data, claims=())
        if not any(claim.task.id in self._given_up for claim in data.claims):
            return data
        return replace(data, claims=[each for each in data.claims if self._is_ours(each, number)])

    def _is_ours(self, claim: Claim, number: int) -> bool:
        known = self._given_up.get(claim.task.id)
        return known is None or number > known.mark or claim.task.version > known.version
