"""Ids of child runs: legal, readable where that is possible, and different for different calls."""

from hypothesis import given
from hypothesis import strategies as st

from layby.workflow.child_ids import child_run_id
from layby.workflow.names import MAX_NAME_BYTES, check_run_id
from layby.workflow.plan import NodeId

SHIP = NodeId("order-7", "ship")


def test_ids_say_where_they_come_from():
    """The run, the task, and the number or the key of the call."""
    assert child_run_id(SHIP, "start-1") == "order-7~ship~1"
    assert child_run_id(SHIP, "key.parcel") == "order-7~ship~parcel"
    assert child_run_id(SHIP, "start-r3.1") == "order-7~ship~r3-1"
    assert child_run_id(SHIP, "start-1", life=2) == "order-7~ship~1~2"


def test_a_key_is_not_mistaken_for_a_number():
    found = {child_run_id(SHIP, key) for key in ("start-1", "key.1", "key.key-1", "key.key-key-1")}
    assert len(found) == 4


def test_what_does_not_fit_has_a_digest():
    """Two that look the same without it are different."""
    one, other = (child_run_id(SHIP, f"key.a{sign}b") for sign in ":/")
    assert one.startswith("order-7~ship~a-b~")
    assert one != other


KEYS = st.one_of(
    st.integers(1, 99).map("start-{}".format),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map("key.{}".format),
)


@given(st.text("ab-~.:", min_size=1, max_size=250), KEYS, KEYS)
def test_every_id_is_legal_and_each_call_has_its_own(task_id, key, other):
    caller = NodeId("r" * 150, task_id)
    made = child_run_id(caller, key)
    assert check_run_id(made) == made
    assert len(made.encode()) <= MAX_NAME_BYTES
    assert (made == child_run_id(caller, other)) == (key == other)
