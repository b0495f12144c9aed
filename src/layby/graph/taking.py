"""Owns what each graph trigger takes: from what waits to the invocations of one visit."""

from collections import deque
from collections.abc import Callable, Generator
from itertools import islice

from layby.graph.context import GraphContext
from layby.graph.messages import Entry
from layby.graph.site import Arrival, Inlet, Site

Invocations = Generator[GraphContext, None, None]
Taker = Callable[[Site, int, float], Invocations]


def invocations(site: Site, epoch: int, now: float) -> Invocations:
    """What was fired first, then what the trigger takes. Left early, nothing is lost."""
    for _ in range(len(site.fires)):  # one that fires itself runs again in the next epoch
        entry = site.fires.popleft()
        taken = _sampled(site) if site.component.trigger.kind == "manual" else ()
        yield GraphContext(site, epoch, None, 0, entry, taken)
    if site.has_waiting():
        yield from TAKERS[site.component.trigger.kind](site, epoch, now)


def _each(site: Site, epoch: int, now: float) -> Invocations:  # noqa: ARG001
    """An invocation for each message: port by port, the oldest first."""
    for inlet in site.trigger_inlets:
        channel = inlet.channel
        if not channel.waiting:
            continue
        with site.desk.lock:
            sequence, taken = channel.take_all()
        try:
            while taken:
                entry = taken.popleft()
                others = (
                    (*_sampled(site), Arrival(inlet, sequence, entry))
                    if site.sampled_inlets
                    else ()
                )
                yield GraphContext(site, epoch, inlet, sequence, entry, others)
                sequence += 1
        finally:
            with site.desk.lock:
                channel.settle(taken)


def run_each(site: Site, epoch: int) -> int:
    """As `_each`, and calls the function itself: a generator between them would cost a fifth."""
    desk, function = site.desk, site.function
    count = 0
    for inlet in site.trigger_inlets:
        channel = inlet.channel
        if not channel.waiting:
            continue
        with desk.lock:
            first, taken = channel.take_all()
        last = first - 1
        try:
            for last, entry in enumerate(taken, first):
                function(GraphContext(site, epoch, inlet, last, entry))
        finally:
            done = last - first + 1
            site.invocation_count += done
            count += done
            with desk.lock:
                channel.settle(deque(islice(taken, done, None)))
    return count


def _sets(site: Site, epoch: int, now: float) -> Invocations:  # noqa: ARG001
    """An invocation for each full set: one message of every port."""
    while (taken := _take_set(site)) is not None:
        yield _of_several(site, epoch, taken[0], taken)


def _take_set(site: Site) -> list[Arrival] | None:
    """What is new comes first: the invocation follows from the first of it."""
    with site.desk.lock:
        chosen = _full_set(site)
        if chosen is None:
            return None
        fresh = [each for each in chosen if each.channel.waiting]
        held = [each for each in chosen if not each.channel.waiting]
        taken = [Arrival(each, *each.channel.take()) for each in fresh]
        return taken + [Arrival(each, *_shown(each)) for each in held]


def _full_set(site: Site) -> list[Inlet] | None:
    """A channel for each port. A latched one counts while it holds something; one must be new."""
    chosen: dict[str, Inlet] = {}
    for inlet in site.trigger_inlets:
        known = chosen.get(inlet.port)
        is_better = known is None or not known.channel.waiting
        if is_better and (inlet.channel.waiting or inlet.channel.held is not None):
            chosen[inlet.port] = inlet
    is_full = all(port in chosen for port in site.component.trigger_inputs)
    is_new = any(each.channel.waiting for each in chosen.values())
    return list(chosen.values()) if is_full and is_new else None


def _batches(site: Site, epoch: int, now: float) -> Invocations:
    """Full batches; and what is left, when it has waited for the window."""
    trigger = site.component.trigger
    assert trigger.batch_size is not None
    while _count(site) >= trigger.batch_size:
        taken = _take(site, trigger.batch_size)
        yield _of_several(site, epoch, taken[-1], taken)
    due_at = due(site)
    if due_at is not None and now >= due_at:
        site.flush_count += 1
        taken = _take(site, trigger.batch_size)
        yield _of_several(site, epoch, taken[-1], taken)


def _quiet(site: Site, epoch: int, now: float) -> Invocations:
    """All that has come, once nothing new came for the window."""
    due_at = due(site)
    if due_at is not None and now >= due_at:
        site.flush_count += 1
        taken = _take(site, _count(site))
        yield _of_several(site, epoch, taken[-1], taken)


def _never(site: Site, epoch: int, now: float) -> Invocations:  # noqa: ARG001
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


def is_ready(site: Site, now: float) -> bool:
    """Whether a visit would find something to do."""
    if site.fires:
        return True
    match site.component.trigger.kind:
        case "manual":
            return False
        case "all_inputs":
            return _full_set(site) is not None
        case "batch" | "debounce":
            size = site.component.trigger.batch_size
            due_at = due(site)
            is_full = size is not None and _count(site) >= size
            return is_full or (due_at is not None and now >= due_at)
        case _:
            return site.has_waiting()


def due(site: Site) -> float | None:
    """When what waits there is taken by the clock, if it is."""
    window = site.component.trigger.window_s
    waiting = [each.channel for each in site.trigger_inlets if each.channel.waiting]
    if window is None or not waiting:
        return None
    if site.component.trigger.kind == "batch":
        return min(each.since for each in waiting) + window
    return max(each.arrived_at for each in waiting) + window


def _of_several(site: Site, epoch: int, head: Arrival, taken: list[Arrival]) -> GraphContext:
    return GraphContext(site, epoch, *head, (*_sampled(site), *taken))


def _count(site: Site) -> int:
    return sum(len(each.channel.waiting) for each in site.trigger_inlets)


def _take(site: Site, most: int) -> list[Arrival]:
    """Port by port, the oldest first."""
    taken: list[Arrival] = []
    with site.desk.lock:
        for inlet in site.trigger_inlets:
            while inlet.channel.waiting and len(taken) < most:
                taken.append(Arrival(inlet, *inlet.channel.take()))
            inlet.channel.since = site.desk.now
    return taken


def _sampled(site: Site) -> tuple[Arrival, ...]:
    """One message of each port that does not trigger, if there is one."""
    if not site.sampled_inlets:
        return ()
    with site.desk.lock:
        return tuple(
            Arrival(each, *each.channel.take())
            for each in site.sampled_inlets
            if each.channel.waiting
        )


def _shown(inlet: Inlet) -> tuple[int, Entry]:
    assert inlet.channel.held is not None
    return inlet.channel.held
