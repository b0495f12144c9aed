import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layby.wire.json_values import encode
from layby.workflow.merge import Delta, Entry, MergeConflict, View
from layby.workflow.shape import Shape
from layby.workflow.views import RunViews
from tests.helpers.dags import KEYS, Naive, delta_of, deltas, shapes

DIAMOND = Shape({"top": (), "left": ("top",), "right": ("top",), "end": ("left", "right")})


def run(shape: Shape, changes: dict, initial: dict | None = None) -> RunViews:
    encoded = {key: encode(value) for key, value in (initial or {}).items()}
    views = RunViews(shape, View.initial(encoded))
    for task in shape.order:
        views.learn(task, delta_of(changes.get(task, {})))
    return views


@settings(max_examples=120, deadline=None)
@given(shapes(), st.data())
def test_views_mean_what_the_naive_rule_says(shape, data):
    initial = data.draw(st.dictionaries(st.sampled_from(KEYS), st.just(b"9")))
    written = {task: data.draw(deltas()) for task in shape.after}
    naive = Naive(shape, initial, written)
    views = RunViews(shape, View.initial(initial))
    for task, delta in written.items():
        views.learn(task, delta)
    for task in data.draw(st.permutations(list(shape.after))):
        assert_same(views.before(task), naive.before(task))
        assert views.after(task).entries() == naive.after(task)
    assert_same(views.final(), naive.final())


def assert_same(merge, expected):
    entries, conflicts = expected
    assert merge.view.entries() == entries
    told = [(each.key, each.winner, each.loser) for each in merge.conflicts]
    assert set(told) == conflicts
    assert len(told) == len(conflicts)
    live = {key: entry.encoded for key, entry in entries.items() if entry.encoded is not None}
    assert dict(merge.view.items()) == live
    assert merge.view.size == sum(len(key) + len(value) + 4 for key, value in live.items())


@pytest.mark.parametrize(
    ("changes", "expected", "conflicts"),
    [
        ({"left": {"k": 1}}, {"k": b"1"}, ()),
        ({"top": {"k": 0}, "right": {"k": 2}}, {"k": b"2"}, ()),
        ({"left": {"k": 1}, "right": {"k": 2}}, {"k": b"2"}, (("k", "right", "left"),)),
        ({"left": {"k": 1}, "right": {"k": 1}}, {"k": b"1"}, ()),
        ({"top": {"k": 0}, "left": {"k": None}}, {}, ()),
        ({"top": {"k": 0}, "left": {"k": 1}, "right": {"k": None}}, {}, (("k", "right", "left"),)),
        ({"top": {"k": 0}, "left": {"k": None}, "right": {"k": None}}, {}, ()),
    ],
)
def test_a_fan_in(changes, expected, conflicts):
    before = run(DIAMOND, changes).before("end")
    assert dict(before.view.items()) == expected
    assert before.conflicts == tuple(MergeConflict(*each) for each in conflicts)


def test_an_untouched_inherited_key_does_not_cover_a_siblings_change():
    """Cloacina: `cfg.x` set to 2 by one branch came back as 1 (studies/cloacina.md 1)."""
    views = run(DIAMOND, {"left": {"cfg": {"x": 2}}}, initial={"cfg": {"x": 1}})
    assert views.before("end").view.encoded("cfg") == encode({"x": 2})
    assert views.before("end").conflicts == ()


def test_a_task_behind_a_failed_one_still_sees_what_came_before():
    """Cloacina: a task whose only dependency failed starts with an empty context."""
    chain = Shape({"a": (), "fails": ("a",), "cleanup": ("fails",)})
    views = run(chain, {"a": {"k": 1}}, initial={"order": 7})
    assert dict(views.before("cleanup").view.items()) == {"order": b"7", "k": b"1"}


def test_a_superseded_writer_does_not_win_by_its_place_in_the_list():
    shape = Shape({"a": (), "b": ("a",), "c": (), "end": ("b", "c", "a")})
    before = run(shape, {"a": {"k": 1}, "b": {"k": 2}, "c": {"k": 3}}).before("end")
    assert before.view.entry("k") == Entry(b"3", "c")
    assert before.conflicts == (MergeConflict("k", "c", "b"),)


def test_the_final_context_merges_all_leaves_in_workflow_order():
    """Cloacina: the final context is that of the last finished task."""
    shape = Shape({"z": (), "a": (), "m": ()})
    final = run(shape, {"z": {"x": 1, "k": 1}, "a": {"y": 2, "k": 2}, "m": {"k": 3}}).final()
    assert dict(final.view.items()) == {"x": b"1", "y": b"2", "k": b"3"}
    assert final.conflicts == (MergeConflict("k", "m", "z"), MergeConflict("k", "m", "a"))


def test_unknown_names_what_has_to_be_read_and_no_more():
    views = RunViews(DIAMOND, View())
    assert views.unknown(["left", "right"]) == ["top", "left", "right"]
    views.learn("top", delta_of({"k": 1}))
    views.learn("left")
    assert views.unknown(["left", "right"]) == ["right"]
    assert views.after("left").encoded("k") == b"1"
    assert views.unknown(["left"]) == []


def test_what_must_be_learned_first_is_not_guessed():
    with pytest.raises(KeyError, match="top"):
        RunViews(DIAMOND, View()).before("left")


@pytest.mark.parametrize("settled_at", [None, 20])
def test_what_settles_after_a_cancel_does_not_pass_through_the_cancelled_task(settled_at):
    """Whoever reads it earlier or later gets the same."""
    chain = Shape({"slow": (), "cancelled": ("slow",), "cleanup": ("cancelled",)})
    views = RunViews(chain, View.initial({"order": b"7"}))
    views.learn("cancelled", settled_at=10)
    if settled_at is None:
        views.leave_open("slow")
    else:
        views.learn("slow", delta_of({"k": 1}), settled_at)
    assert dict(views.before("cleanup").view.items()) == {"order": b"7"}


def test_a_task_left_open_can_be_learned_later():
    views = RunViews(DIAMOND, View())
    views.leave_open("top")
    assert views.unknown(["top"]) == ["top"]
    views.learn("top", delta_of({"k": 1}))
    assert views.before("left").view.encoded("k") == b"1"


def test_a_task_left_open_is_given_what_is_before_it():
    """One after it was cancelled and has let others go on; its own turn comes later."""
    chain = Shape({"first": (), "slow": ("first",), "cancelled": ("slow",), "last": ("cancelled",)})
    views = RunViews(chain, View())
    views.learn("cancelled", settled_at=10)
    views.leave_open("first")
    views.leave_open("slow")
    views.before("last")
    views.learn("first", delta_of({"k": 1}), settled_at=20)
    assert views.before("slow").view.encoded("k") == b"1"


def chain_of(length: int) -> Shape:
    return Shape({f"t{n}": (f"t{n - 1}",) if n else () for n in range(length)})


def entries_copied(views: RunViews, shape: Shape) -> int:
    """How many entries all views of a run hold together, each shared layer counted once."""
    layers = {id(layer): layer for task in shape.order for layer in views.after(task).layers}
    return sum(len(layer) for layer in layers.values())


def test_a_long_chain_is_not_copied_over_and_over():
    length = 5_000
    shape = chain_of(length)
    views = run(shape, {f"t{n}": {f"k{n}": n} for n in range(length)})
    final = views.final().view  # worked out from the end: no recursion
    assert len(list(final.items())) == length
    assert entries_copied(views, shape) < length * 20
    assert len(final.layers) < 20


def test_a_fan_in_looks_only_at_what_differs():
    width = 2_000
    shape = Shape(
        {
            "top": (),
            **{f"w{n}": ("top",) for n in range(width)},
            "end": tuple(f"w{n}" for n in range(width)),
        }
    )
    initial = {f"i{n}": n for n in range(width)}
    views = run(shape, {f"w{n}": {f"k{n}": n} for n in range(width)}, initial)
    assert len(list(views.before("end").view.items())) == 2 * width
    assert entries_copied(views, shape) < 10 * width


def test_a_delta_is_false_when_nothing_changed():
    assert not Delta()
    assert Delta({"k": b"1"})
    assert Delta(removed=("k",))
