"""What people see of child runs: each once, as it is in its latest life."""

import msgspec

from layby.core import birth, tag_names
from layby.core.model import Promise
from layby.workflow.child_states import caller_named, child_states, children_of, shown_in


def root(root_id: str, caller: str = "run/p:ship", **changed: object) -> Promise:
    tags = {tag_names.NAME: "order", tag_names.PARENT: "run/p", tag_names.CALLER: caller}
    row = Promise(root_id, root_id, "{}", birth.encoded(tags), 1_000, 0)
    return msgspec.structs.replace(row, **changed)


CANCELLED = {"state": "rejected_canceled", "settled_at": 5}


def test_a_child_is_named_with_how_it_stands():
    """Past its deadline it has failed, whether or not that was swept."""
    open_, late = root("run/b"), root("run/a", timeout_at=10)
    found = child_states([open_, late], now=20)
    assert [(each.run_id, each.state) for each in found] == [("a", "Failed"), ("b", "Running")]
    assert (found[0].flow, found[0].task, found[0].life) == ("order", "ship", 1)


def test_the_latest_life_counts():
    """Whichever is read first."""
    lives = [root("run/a", **CANCELLED), root("run/a:life/2", "run/p:life/2:ship")]
    for order in (lives, lives[::-1]):
        (found,) = child_states(order, now=0)
        assert (found.run_id, found.state, found.lives, found.life) == ("a", "Running", 2, 2)


def test_a_detached_child_is_marked():
    tags = {tag_names.NAME: "order", tag_names.PARENT: "run/p", tag_names.DETACHED: "true"}
    assert child_states([root("run/a", tags=birth.encoded(tags))], now=0)[0].detached


def test_a_life_of_the_parent_shows_what_it_can_have_seen():
    lives = [root("run/a"), root("run/b", "run/p:life/2:ship")]
    children = child_states(lives, now=0)
    assert [[each.run_id for each in shown_in(children, life)] for life in (1, 2)] == [
        ["a"],
        ["a", "b"],
    ]


def test_children_of_all_lives_are_asked_for_at_once():
    assert children_of("run/p:life/2").tags == {tag_names.PARENT: "run/p"}


def test_whose_child_it_is():
    assert caller_named(root("run/a", "run/p:life/2:ship")) == "task 'ship' of run 'p'"
    assert caller_named(root("run/a", tags="{}")) is None
