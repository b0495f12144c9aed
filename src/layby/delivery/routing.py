"""Routes messages to receivers of their group, over a socket or in this process.

An `execute` stays in the outbox until its task has been taken or has ended, when core withdraws
it. So nothing is lost when its receiver dies: the message goes to another one at once, as it does
when its receiver declines because it does not have the function, or has no free slot. An `unblock`
is forgotten once its receiver has it. A message that nobody can take now stays in the outbox, and
is offered when a receiver connects or has room again.

Where several processes share a store, only messages that this one has leased come here. Those that
nobody here can take are released, so that others offer them.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from layby.core.address import PollAddress, parse_poll
from layby.core.model import Message, MessageKey
from layby.core.replies import Reply
from layby.core.ticks import ForgetMessages
from layby.delivery.assignments import Assignments, Receiver
from layby.delivery.declines import Declines
from layby.delivery.hand_backs import HandBacks
from layby.delivery.offering import Offering
from layby.engine.elsewhere import ReleaseMessages
from layby.engine.engine import Engine
from layby.engine.outbox import Outgoing
from layby.local import LocalClient

logger = logging.getLogger(__name__)

K = TypeVar("K")
KEPT_MS = 24 * 3_600_000
"""How long an `unblock` is kept; after that, its receiver has to read the promise."""


class Push(Protocol):
    """Delivers to addresses that are not connections: `http://…`."""

    def push(self, outgoing: Outgoing) -> None: ...

    def withdraw(self, key: MessageKey) -> None: ...

    @property
    def pending(self) -> Collection[Message]:
        """What is under way, or waits for its next try."""
        ...


class Router:
    """A `Delivery`. Call it in the event loop, except `committed` and `offered`."""

    def __init__(
        self,
        push: Push | None = None,
        count: Callable[[str, str], None] = lambda _kind, _status: None,
        choose: Callable[[Sequence[Receiver]], Receiver] = random.choice,
        observe_wake: Callable[[float], None] = lambda _seconds: None,
        count_taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        """`count` gets each message's kind and fate, `observe_wake` the age of its news.

        `count_taken_over`: a message comes that another process may have delivered as well.
        """
        self._loop = asyncio.get_running_loop()
        self._push = push
        self._count = count
        self._choose = choose
        self._observe_wake = observe_wake
        self._count_taken_over = count_taken_over
        self._receivers: dict[str, list[Receiver]] = {}
        self._by_id: dict[tuple[str, str], list[Receiver]] = {}
        self._assignments = Assignments()
        self._delivered: set[Message] = set()
        """Arrived, but still in the outbox: it may be offered again and must not be sent again."""
        self._declined = Declines(self._loop.time)
        self._offerings: dict[Receiver, Offering] = {}
        self._turns = asyncio.Semaphore(1)
        self._hand_backs = HandBacks()
        self._paused: dict[MessageKey, tuple[Message, asyncio.TimerHandle]] = {}

    def attach(self, engine: Engine, client: LocalClient) -> None:
        self._engine = engine
        self._client = client

    # --- from the writer's thread --------------------------------------------------------

    def committed(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        with suppress(
            RuntimeError
        ):  # the loop is closed: the next process to open the store delivers
            self._loop.call_soon_threadsafe(self._accept, outgoing, withdrawn)

    def offered(self, outgoing: Sequence[Outgoing]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._accept_offered, outgoing)

    def wants(self, message: Message) -> bool:
        """From the writer's thread too: it only looks, and may be wrong by the time it matters."""
        address = parse_poll(message.address)
        if address is None:
            return self._push is not None or not _is_push(message)
        if address.cast == "uni" and address.id is None:
            return True  # it leads nowhere: somebody has to drop it
        tried = self._tried(message)
        return bool(tried) or self._receiver_of(message, address, tried) is not None

    def keep(self, messages: Sequence[Message]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._keep, set(messages))

    # --- receivers -----------------------------------------------------------------------

    def connect(self, receiver: Receiver) -> None:
        self._receivers.setdefault(receiver.group, []).append(receiver)
        self._by_id.setdefault((receiver.group, receiver.id), []).append(receiver)
        self.made_room(receiver)

    def disconnect(self, *receivers: Receiver) -> None:
        """Messages that were under way to them go to other receivers where that is allowed."""
        for each in receivers:
            _remove(self._receivers, each.group, each)
            _remove(self._by_id, (each.group, each.id), each)
            self._declined.forget_receiver(each)
            if (offering := self._offerings.pop(each, None)) is not None:
                offering.stop()
        unassigned = [
            outgoing for each in receivers for outgoing in self._assignments.drop_all_to(each)
        ]
        for outgoing in unassigned:
            self._send(outgoing)

    def made_room(self, receiver: Receiver) -> None:
        """Offer it the messages in the outbox that it can take now."""
        offering = self._offerings.get(receiver)
        if offering is None or offering.is_done:
            self._offerings[receiver] = Offering(receiver, self._client, self._turns)
        else:
            offering.resume()

    def arrived(self, outgoing: Sequence[Outgoing]) -> None:
        """Their receiver has them. An `execute` stays under way until its task is taken."""
        done = {each.message for each in outgoing if each.message.kind != "execute"}
        for message in done:
            self._assignments.drop(message.key)
        now = self._engine.clock.now()
        for each in outgoing:
            self._count(each.message.kind, "success")
            if each.promise is not None and each.promise.settled_at is not None:
                self._observe_wake((now - each.promise.settled_at) / 1000)
        if done:
            self._forget(done)

    def decline(self, task_id: str, version: int, target: str, receiver_id: str) -> None:
        """This receiver does not take the task, at least not now: ask another one.

        If there is none, the message waits in the outbox. The receiver may still acquire the task.
        """
        key: MessageKey = (task_id, "execute", target)
        assignment = self._assignments.get(key)
        if assignment is None or assignment.receiver.id != receiver_id:
            return
        if assignment.outgoing.message.version == version:
            self._assignments.drop(key)
            self._declined.add(assignment.outgoing.message, assignment.receiver)
            self._send(assignment.outgoing)

    def note_hand_back(self, task_id: str, version: int) -> None:
        """The task is about to be released: the `execute` that follows may have to wait."""
        self._hand_backs.note(task_id, version)

    def is_current(self, outgoing: Outgoing, receiver: Receiver) -> bool:
        """Whether the message is still assigned to it: not withdrawn, replaced or rerouted."""
        assignment = self._assignments.get(outgoing.key)
        return (
            assignment is not None
            and assignment.outgoing is outgoing
            and assignment.receiver is receiver
        )

    def _forget(self, messages: set[Message]) -> None:
        self._delivered |= messages
        forgetting = self._client.ask(ForgetMessages(messages=tuple(messages)))
        forgetting.add_done_callback(partial(self._forgot, messages))

    def _forgot(self, messages: set[Message], forgetting: "asyncio.Future[Reply]") -> None:
        """Messages that could not be forgotten will be delivered once more."""
        self._delivered -= messages
        if not forgetting.cancelled() and (failure := forgetting.exception()) is not None:
            logger.warning("messages that have arrived are still in the outbox: %s", failure)

    # --- messages ------------------------------------------------------------------------

    def _accept(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        for key in withdrawn:
            self._withdraw(key)
        for each in outgoing:
            self._declined.forget(each.key)
            self._end_pause(each.key)
            self._skip_unresponsive(each)
            self._send(each)

    def _skip_unresponsive(self, again: Outgoing) -> None:
        """Prefer others to a receiver that got the message and never took the task: it may hang."""
        assignment = self._assignments.get(again.key)
        if assignment is None or not again.message.address.startswith("poll://any@"):
            return
        if len(self._receivers.get(assignment.receiver.group, ())) > 1:
            self._declined.add(again.message, assignment.receiver)

    def _withdraw(self, key: MessageKey) -> None:
        """Usually because its task was taken, most likely by the receiver of the message."""
        task_id, kind, _ = key
        assignment = self._assignments.get(key)
        if assignment is not None and kind == "execute":
            self._hand_backs.note_taken(task_id, assignment.receiver.id)
        self._assignments.drop(key)
        self._declined.forget(key)
        self._end_pause(key)
        if self._push is not None:
            self._push.withdraw(key)

    def _accept_offered(self, outgoing: Sequence[Outgoing]) -> None:
        long_ago = self._engine.clock.now() - KEPT_MS
        for each in outgoing:
            if each.taken_over:
                self._count_taken_over()
            if each.promise is not None and (each.promise.settled_at or 0) < long_ago:
                self._drop(each)
            elif not self._is_known(each.message):
                self._end_pause(each.key)
                self._send(each)

    def _is_known(self, message: Message) -> bool:
        if message in self._assignments or message in self._delivered:
            return True
        return message.key in self._paused and self._paused[message.key][0] == message

    def _keep(self, ours: set[Message]) -> None:
        """Others withdraw messages too, and take them over: then they are not ours any more."""
        pushed = set(() if self._push is None else self._push.pending)
        paused = {message for message, _ in self._paused.values()}
        known = {*self._assignments, *paused, *pushed}
        for message in known - ours:
            self._withdraw(message.key)
        self._declined.forget_old()
        if unknown := ours - known - self._delivered:
            self._release(unknown)

    def _release(self, messages: Collection[Message]) -> None:
        """Nobody here can take them: where there are other processes, they may offer them."""
        if self._engine.is_shared:
            self._client.ask(ReleaseMessages(messages=tuple(messages)))

    def _send_after_pause(self, outgoing: Outgoing) -> None:
        """Every receiver has handed it back: ask them again, after a pause."""
        pause = self._hand_backs.next_round(outgoing.message.id)
        handle = self._loop.call_later(pause, self._send_paused, outgoing)
        self._paused[outgoing.key] = outgoing.message, handle

    def _send_paused(self, outgoing: Outgoing) -> None:
        del self._paused[outgoing.key]
        self._send(outgoing)

    def _end_pause(self, key: MessageKey) -> None:
        if (paused := self._paused.pop(key, None)) is not None:
            paused[1].cancel()

    def _send(self, outgoing: Outgoing) -> None:
        address = parse_poll(outgoing.message.address)
        if address is None:
            self._send_elsewhere(outgoing)
        elif address.cast == "uni" and address.id is None:
            self._drop(outgoing)
        else:
            self._send_to_one_of(outgoing, address)

    def _send_to_one_of(self, outgoing: Outgoing, address: PollAddress) -> None:
        tried = self._tried(outgoing.message)
        receiver = self._receiver_of(outgoing.message, address, tried)
        if receiver is not None:
            self._assignments.put(outgoing, receiver)
            receiver.receive(outgoing)
        elif tried:
            self._send_after_pause(outgoing)
        else:
            self._release([outgoing.message])

    def _send_elsewhere(self, outgoing: Outgoing) -> None:
        if not _is_push(outgoing.message):
            self._drop(outgoing)
        elif self._tried(outgoing.message):
            self._send_after_pause(outgoing)
        elif self._push is not None:
            self._push.push(outgoing)

    def _tried(self, message: Message) -> set[str]:
        """The receivers that have just handed its task back."""
        is_execute = message.kind == "execute"
        return self._hand_backs.tried(message.id, message.version) if is_execute else set()

    def _drop(self, outgoing: Outgoing) -> None:
        """It can never be delivered: the address is valid and leads nowhere."""
        self._count(outgoing.message.kind, "dropped")
        self._engine.forget([outgoing.message])

    def _receiver_of(
        self, message: Message, address: PollAddress, tried: set[str]
    ) -> Receiver | None:
        """The named receiver if it has room; else any other one if the address allows that."""
        declined = self._declined.of(message)
        # The newest connection counts: older ones with this id are dead, noticed or not.
        named = self._by_id.get((address.group, address.id or ""), ())[-1:]
        candidates = [each for each in named if each not in declined and each.id not in tried]
        candidates = [each for each in candidates if each.has_room]
        if candidates or address.cast == "uni":
            return candidates[0] if candidates else None
        members = self._receivers.get(address.group, ())
        if declined or tried:
            members = [each for each in members if each not in declined and each.id not in tried]
        return self._any_with_room(members)

    def _any_with_room(self, members: Sequence[Receiver]) -> Receiver | None:
        """Try one at random first: there may be thousands, and most have room."""
        if members and (chosen := self._choose(members)).has_room:
            return chosen
        candidates = [each for each in members if each.has_room]
        return self._choose(candidates) if candidates else None


def _is_push(message: Message) -> bool:
    return message.address.startswith(("http://", "https://"))


def _remove(lists: dict[K, list[Receiver]], key: K, receiver: Receiver) -> None:
    members = lists.get(key, [])
    if receiver in members:
        members.remove(receiver)
    if not members:
        lists.pop(key, None)
