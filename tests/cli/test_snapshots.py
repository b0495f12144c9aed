"""What a server shows is enough to see what is wrong with it."""

import msgspec
import pytest

from layby.cli.server_checks import SEARCH_INVARIANTS, WAITING_INVARIANTS
from layby.cli.snapshots import SEEN, UNSEEN, state_of_entries
from layby.core.invariants import INVARIANTS, StateView
from layby.core.queries import ListWaiting, SnapDebug
from layby.wire.encode import encode
from layby.wire.snapshot_record import SnapshotRecord
from tests.store.test_by_time import NOW, prepared


def shown(world) -> SnapshotRecord:
    """Over the wire and back."""
    reply = world.engine.call(SnapDebug(), NOW)
    data = msgspec.json.decode(encode("debug.snap", "0", reply))["data"]
    return msgspec.json.decode(msgspec.json.encode(data), type=SnapshotRecord)


def violations(state, which) -> list[str]:
    return [f"{each.__name__}: {what}" for each in which for what in each(StateView(state, NOW))]


@pytest.mark.parametrize("seed", range(10))
def test_a_sound_server_looks_sound(seed):
    """Nothing that the wire leaves out is taken for a violation."""
    world, _ = prepared(seed)
    world.engine.call(SnapDebug(), NOW)
    assert violations(shown(world).row(), SEEN) == []
    entries = world.ok(ListWaiting(limit=1_000)).entries
    assert violations(state_of_entries(entries), WAITING_INVARIANTS) == []
    assert violations(shown(world).row(), SEARCH_INVARIANTS) == []


def test_every_invariant_is_seen_or_known_to_be_unseen():
    """A new one has to be put on one side."""
    assert set(SEEN) | set(UNSEEN) == set(INVARIANTS)
    assert set(SEARCH_INVARIANTS) | set(WAITING_INVARIANTS) <= set(INVARIANTS)


def test_what_is_wrong_is_found_in_a_snapshot():
    """A task without its lease, a wait for what is settled, a message that is stale."""
    world, _ = prepared(0)
    snapshot = shown(world)
    broken = msgspec.structs.replace(snapshot, task_timeouts=[])
    found = {each.partition(":")[0] for each in violations(broken.row(), SEEN)}
    assert "pending_task_no_ttimeout" in found
    lonely = msgspec.structs.replace(snapshot, callbacks=[])
    assert any("waits for nothing" in each for each in violations(lonely.row(), SEEN))
    orphans = msgspec.structs.replace(snapshot, promises=[])
    assert any("has no promise" in each for each in violations(orphans.row(), SEEN))
