"""What must hold in every record of calls and messages, however they were mixed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.helpers.recording import Call, Data, Heard, Record

CLAIMS = ("task.acquire", "task.create", "layby.worker.take", "layby.task.finish")


class Claim(NamedTuple):
    task_id: str
    version: int
    call: Call


class Sighting(NamedTuple):
    """Somebody was shown this record: it stood so at a moment after `since` and before `by`."""

    shown: Data
    since: int
    by: int


def judge(record: Record) -> None:
    """Raises what is wrong."""
    wrong = [
        *claimed_twice(record),
        *versions_left_out(record),
        *claimed_out_of_order(record),
        *settled_and_changed(record),
        *tasks_gone_back(record),
        *told_wrongly(record),
        *dispatched_without_issue(record),
    ]
    assert not wrong, "\n".join(wrong)


# --- claims ----------------------------------------------------------------------------------


def claims(record: Record) -> list[Claim]:
    return [
        Claim(task["id"], task["version"], call)
        for call in record.calls
        if call.is_ok and call.kind in CLAIMS
        for task in _records(call.answer)
        if _is_task(task) and task["state"] == "acquired"
    ]


def claimed_twice(record: Record) -> Iterator[str]:
    """At most one claim succeeds for each version of a task."""
    first: dict[tuple[str, int], Call] = {}
    for task_id, version, call in claims(record):
        other = first.setdefault((task_id, version), call)
        if other is not call:
            yield f"version {version} of {task_id} was claimed twice: {other} and {call}"


def versions_left_out(record: Record) -> Iterator[str]:
    """Every claim makes the next version; only one that was not answered can be missing."""
    unknown = [each for each in record.calls if each.answer is None and each.kind in CLAIMS]
    given: dict[str, set[int]] = defaultdict(set)
    for task_id, version, _ in claims(record):
        given[task_id].add(version)
    for task_id, versions in given.items():
        missing = set(range(1, max(versions))) - versions
        if len(missing) > len(unknown):
            yield f"{task_id} reached {max(versions)} and nobody claimed {sorted(missing)}"


def claimed_out_of_order(record: Record) -> Iterator[str]:
    """A claim made after another one was answered has a higher version."""
    by_task: dict[str, list[Claim]] = defaultdict(list)
    for each in claims(record):
        by_task[each.task_id].append(each)
    for made in by_task.values():
        highest = _Highest()
        for claim in sorted(made, key=lambda each: each.call.invoked_at):
            before = highest.before(claim.call.invoked_at)
            if before >= claim.version:
                yield f"{claim} came after version {before} had been claimed"
            highest.add(claim.version, claim.call.returned_at)


# --- what never changes any more -------------------------------------------------------------


def settled_and_changed(record: Record) -> Iterator[str]:
    """Once anybody was shown a promise settled, everybody is shown the same for ever."""
    for promise_id, seen in _by_id(record, is_task=False).items():
        settled = [each for each in seen if each.shown["state"] != "pending"]
        if not settled:
            continue
        first = min(settled, key=lambda each: each.by)
        yield from (
            f"{promise_id} was settled as {first} and then {each}"
            for each in settled
            if each.shown != first.shown
        )
        yield from (
            f"{promise_id} was settled as {first} and pending later: {each}"
            for each in seen
            if each.shown["state"] == "pending" and each.since > first.by
        )


def tasks_gone_back(record: Record) -> Iterator[str]:
    """A version never falls, and a fulfilled task stays as it is."""
    for task_id, seen in _by_id(record, is_task=True).items():
        highest = _Highest()
        for each in sorted(seen, key=lambda each: each.since):
            before, rank = highest.before(each.since), _rank(each.shown)
            if rank < before:
                yield f"{task_id} had come to {before} and is shown as {each}"
            highest.add(rank, each.by)


def _rank(task: Data) -> int:
    return task["version"] * 2 + (task["state"] == "fulfilled")


class _Highest:
    """The highest of all values that were known for sure at some time; times must rise."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, int]] = []
        self._value = -1

    def add(self, value: int, known_at: int) -> None:
        self._coming.append((known_at, value))

    def before(self, time: int) -> int:
        known = [value for known_at, value in self._coming if known_at < time]
        self._coming = [each for each in self._coming if each[0] >= time]
        self._value = max([self._value, *known])
        return self._value


# --- messages --------------------------------------------------------------------------------


def told_wrongly(record: Record) -> Iterator[str]:
    """An unblock tells of a settled promise, to somebody who asked for it."""
    asked = {
        (call.data["address"], call.data["awaited"])
        for call in record.calls
        if call.kind == "promise.register_listener" and (call.is_ok or call.answer is None)
    }
    for each in record.of("unblock"):
        if each.message["data"]["promise"]["state"] == "pending":
            yield f"{each} tells of a promise that is pending"
        if each.key not in asked:
            yield f"{each} was not asked for"


def told_twice(record: Record) -> Iterator[str]:
    """Nobody hears the same thing twice; holds as long as nobody dies."""
    first: dict[tuple[str, str], Heard] = {}
    for each in record.of("unblock"):
        if first.setdefault(each.key, each) is not each:
            yield f"heard twice: {first[each.key]} and {each}"


def never_told(record: Record) -> set[tuple[str, str]]:
    """Who was promised to hear of what, and has not: to be asked when everything is settled."""
    promised = {
        (call.data["address"], call.data["awaited"])
        for call in record.calls
        if call.kind == "promise.register_listener" and call.is_ok
        if call.answer is not None and call.answer.data["promise"]["state"] == "pending"
    }
    return promised - record.told


def dispatched_without_issue(record: Record) -> Iterator[str]:
    """No version is dispatched that nobody was given; 0 is the one a task is born with."""
    unknown = [each for each in record.calls if each.answer is None and each.kind in CLAIMS]
    issued = {(each.task_id, each.version): each.call.invoked_at for each in claims(record)}
    for each in record.of("execute"):
        task = each.message["data"]["task"]
        if task["version"] == 0:
            continue
        since = issued.get((task["id"], task["version"]))
        if since is None and not unknown:
            yield f"{each} is a version that was never issued"
        elif since is not None and since > each.at:
            yield f"{each} came before its version was issued"


# --- reading ---------------------------------------------------------------------------------


def _by_id(record: Record, *, is_task: bool) -> dict[str, list[Sighting]]:
    found: dict[str, list[Sighting]] = defaultdict(list)
    for each in _sightings(record):
        if _is_task(each.shown) == is_task:
            found[each.shown["id"]].append(each)
    return found


def _sightings(record: Record) -> Iterable[Sighting]:
    for call in record.calls:
        if call.is_ok:
            for shown in _records(call.answer):
                yield Sighting(shown, call.invoked_at, call.returned_at)
    for heard in record.of("unblock"):  # nobody knows how long it was under way
        yield Sighting(heard.message["data"]["promise"], 0, heard.at)


def _records(shown: Any) -> Iterator[Data]:
    """Every promise and task in an answer."""
    if isinstance(shown, dict):
        if "id" in shown and "state" in shown:
            yield shown
        else:
            yield from _records(list(shown.values()))
    elif isinstance(shown, list | tuple):
        for each in shown:
            yield from _records(each)


def _is_task(shown: Data) -> bool:
    return "version" in shown
