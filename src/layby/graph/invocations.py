"""Owns what each graph trigger takes: from what waits to the invocations of one visit."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice

from layby.graph.channel import Moment
from layby.graph.component_state import Arrival, ComponentState, InputChannel
from layby.graph.graph_context import GraphContext
from layby.graph.returns import check_returned

Invocations = Generator[GraphContext, None, None]
Taker = Callable[[ComponentState, int, float], Invocations]


def invocations(state: ComponentState, epoch: int, now: float) -> Invocations:
    """What was fired first, then what the trigger takes. Left early, nothing is lost.

    What an invocation has taken is given back, to where it waited, if it was interrupted.
    """
    for _ in range(len(state.fires)):  # one that fires itself runs again in the next epoch
        entry = state.fires.popleft()
        taken = _sampled(state) if state.component.trigger.kind == "manual" else ()
        try:
            yield GraphContext(state, epoch, None, 0, entry, taken)
        finally:
            if state.is_interrupted:
                state.fires.appendleft(entry)
            if taken:
                _finish(state, taken)
    if state.has_waiting():
        yield from TAKERS[state.component.trigger.kind](state, epoch, now)


def _each(state: ComponentState, epoch: int, now: float) -> Invocations:  # noqa: ARG001
    """An invocation for each message: port by port, the oldest first."""
    for incoming in state.trigger_channels:
        channel = incoming.channel
        if not channel.waiting:
            continue
        with state.publisher.lock:
            sequence, taken = channel.take_all()
        try:
            while taken:
                entry = taken.popleft()
                sampled = _sampled(state)
                others = (*sampled, Arrival(incoming, sequence, entry)) if sampled else ()
                try:
                    yield GraphContext(state, epoch, incoming, sequence, entry, others)
                finally:
                    if state.is_interrupted:
                        taken.appendleft(entry)
                    if sampled:
                        _finish(state, sampled)
                sequence += 1
        finally:
            with state.publisher.lock:
                channel.settle(taken)


def run_each(
    state: ComponentState, epoch: int, note_end: Callable[[ComponentState, BaseException], None]
) -> int:
    """As `_each`, and calls the function itself: a generator between them would cost a fifth."""
    publisher, function = state.publisher, state.function
    count = 0
    for incoming in state.trigger_channels:
        channel = incoming.channel
        if not channel.waiting:
            continue
        with publisher.lock:
            first, taken = channel.take_all()
        last = first - 1
        try:
            for last, entry in enumerate(taken, first):
                returned = function(GraphContext(state, epoch, incoming, last, entry))
                if returned is not None:  # a call less, for most
                    check_returned(returned)
                if channel.closed:
                    break
        except BaseException as error:
            note_end(state, error)
            raise
        finally:
            begun = last - first + 1
            state.invocation_count += begun
            count += begun
            with publisher.lock:
                channel.settle(deque(islice(taken, begun - state.is_interrupted, None)))
    return count


def _sets(state: ComponentState, epoch: int, now: float) -> Invocations:  # noqa: ARG001
    """An invocation for each full set: one message of every port."""
    while (taken := _take_set(state)) is not None:
        yield from _of_several(state, epoch, taken[0], taken)


def _take_set(state: ComponentState) -> list[Arrival] | None:
    """What is new comes first: the invocation follows from the first of it."""
    with state.publisher.lock:
        chosen = _full_set(state)
        if chosen is None:
            return None
        fresh = [each for each in chosen if each.channel.waiting]
        held = [each for each in chosen if not each.channel.waiting]
        return [*map(_lent, fresh), *map(_shown, held)]


def _full_set(state: ComponentState) -> list[InputChannel] | None:
    """A channel for each port. A latched one counts while it holds something; one must be new."""
    chosen: dict[str, InputChannel] = {}
    for incoming in state.trigger_channels:
        known = chosen.get(incoming.port)
        is_better = known is None or not known.channel.waiting
        if is_better and (incoming.channel.waiting or incoming.channel.shown is not None):
            chosen[incoming.port] = incoming
    is_full = all(port in chosen for port in state.component.trigger_inputs)
    is_new = any(each.channel.waiting for each in chosen.values())
    return list(chosen.values()) if is_full and is_new else None


def _batches(state: ComponentState, epoch: int, now: float) -> Invocations:
    """Full batches; and what is left, when it has waited for the window."""
    trigger = state.component.trigger
    assert trigger.batch_size is not None
    while _count(state) >= trigger.batch_size:
        taken = _take(state, trigger.batch_size)
        yield from _of_several(state, epoch, taken[-1], taken)
    due_at = due(state)
    if due_at is not None and now >= due_at:
        state.flush_count += 1
        taken = _take(state, trigger.batch_size)
        yield from _of_several(state, epoch, taken[-1], taken)


def _quiet(state: ComponentState, epoch: int, now: float) -> Invocations:
    """All that has come, once nothing new came for the window."""
    due_at = due(state)
    if due_at is not None and now >= due_at:
        state.flush_count += 1
        taken = _take(state, _count(state))
        yield from _of_several(state, epoch, taken[-1], taken)


def _never(state: ComponentState, epoch: int, now: float) -> Invocations:  # noqa: ARG001
    """Only `fire` makes it run."""
    yield from ()


TAKERS: dict[str, Taker] = {
    "manual": _never,
    "any_input": _each,
    "task_ready": _each,
    "all_inputs": _sets,
    "batch": _batches,
    "debounce": _quiet,
}


def is_ready(state: ComponentState, now: float) -> bool:
    """Whether a visit would find something to do."""
    if state.fires:
        return True
    match state.component.trigger.kind:
        case "manual":
            return False
        case "all_inputs":
            return _full_set(state) is not None
        case "batch" | "debounce":
            size = state.component.trigger.batch_size
            due_at = due(state)
            is_full = size is not None and _count(state) >= size
            return is_full or (due_at is not None and now >= due_at)
        case _:
            return state.has_waiting()


def due(state: ComponentState) -> float | None:
    """When what waits there is taken by the clock, if it is."""
    window = state.component.trigger.window_s
    waiting = [each.channel for each in state.trigger_channels if each.channel.waiting]
    if window is None or not waiting:
        return None
    if state.component.trigger.kind == "batch":
        return min(each.oldest.at for each in waiting) + window
    return max(each.newest.at for each in waiting) + window


def _of_several(
    state: ComponentState, epoch: int, head: Arrival, taken: list[Arrival]
) -> Invocations:
    """One invocation that has taken all of these."""
    arrivals = (*_sampled(state), *taken)
    try:
        yield GraphContext(state, epoch, head.incoming, head.sequence, head.entry, arrivals)
    finally:
        _finish(state, arrivals)


def _finish(state: ComponentState, arrivals: Sequence[Arrival]) -> None:
    """Its invocation has ended, or was interrupted: then they wait again as before."""
    with state.publisher.lock:
        if state.is_interrupted:
            for arrival in reversed(arrivals):
                arrival.give_back()
        for arrival in arrivals:
            arrival.incoming.channel.settle()


def _count(state: ComponentState) -> int:
    return sum(len(each.channel.waiting) for each in state.trigger_channels)


def _take(state: ComponentState, most: int) -> list[Arrival]:
    """The oldest first; of those that became visible together, port by port."""
    taken: list[Arrival] = []
    channels = state.trigger_channels
    with state.publisher.lock:
        line = [
            (each.channel.oldest.boundary, place)
            for place, each in enumerate(channels)
            if each.channel.waiting
        ]
        heapify(line)
        while line and len(taken) < most:
            place = line[0][1]
            taken.append(_lent(channels[place]))
            if channels[place].channel.waiting:
                heapreplace(line, (channels[place].channel.oldest.boundary, place))
            else:
                heappop(line)
    return taken


def _sampled(state: ComponentState) -> tuple[Arrival, ...]:
    """One message of each port that does not trigger, if there is one."""
    if not state.sampled_channels:
        return ()
    with state.publisher.lock:
        return tuple(map(_lent, [each for each in state.sampled_channels if each.channel.waiting]))


def _lent(incoming: InputChannel) -> Arrival:
    channel = incoming.channel
    moment = channel.oldest if channel.moments else Moment()
    return Arrival(incoming, *channel.lend(), moment)


def _shown(incoming: InputChannel) -> Arrival:
    assert incoming.channel.shown is not None
    return Arrival(incoming, *incoming.channel.shown, is_shown=True)
