"""What pruning may do to a state, said once more and in another way than the rule says it."""

from collections import defaultdict

from layby.core.ids import ancestors_of, root_of
from layby.core.model import Promise
from layby.core.state import State


def check_pruned(before: State, after: State) -> set[str]:
    """The ids of what was pruned between the two, if that was right."""
    pruned = {
        key
        for key, promise in before.promises.items()
        if key not in after.promises or (after.promises[key].is_expired and not promise.is_expired)
    }
    trees = _trees(before)
    for key in pruned:
        promise = before.promises[key]
        assert _is_open_to_nobody(before, promise), f"{key} was awaited"
        if promise.is_expired or (promise.placeholder and promise.is_pending):
            continue
        tree = next(ids for ids in trees.values() if key in ids)
        assert all(_has_ended(before, each) for each in tree), f"{key} went, {tree} had not ended"
        if _is_alone(before, key):
            above = (before.promises.get(each) for each in ancestors_of(key))
            assert not any(each is not None and each.is_pending for each in above)
        left = tree - pruned
        root = _root(before, key)
        is_armed = root in after.promises and after.promises[root].tail_at is not None
        assert not left or is_armed or before.promises[root].is_expired, f"{left} was left"
        if root in before.promises:
            assert after.promises[root].is_expired, f"nothing is left of {root}"
    return pruned


def _trees(state: State) -> dict[str, set[str]]:
    trees: defaultdict[str, set[str]] = defaultdict(set)
    for key in state.promises:
        trees[_root(state, key)].add(key)
    return trees


def _root(state: State, key: str) -> str:
    """A run is a tree of its own, whatever its id looks like."""
    head = key.partition(":")[0]
    task = state.tasks.get(head)
    if task is not None and task.is_root:
        return head
    return key if _is_alone(state, key) else root_of(key)


def _is_alone(state: State, key: str) -> bool:
    """Whether it is one of a tree that has no root promise."""
    return not key.startswith("run/") and root_of(key) not in state.promises


def _is_open_to_nobody(state: State, promise: Promise) -> bool:
    awaited = {each for each, _ in state.waits}
    listened = {each.awaited for each in state.listeners}
    told = {each for each, kind, _ in state.messages if kind != "lost"}
    return promise.id not in awaited | listened | told


def _has_ended(state: State, key: str) -> bool:
    task = state.tasks.get(key)
    return _is_open_to_nobody(state, state.promises[key]) and (
        task is None or (task.state == "fulfilled" and task.holder is None)
    )
