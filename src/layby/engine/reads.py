"""Reads that are not by id: searches, what a holder holds, the snapshot."""

from layby.core.commands import (
    GetRun,
    ListHeld,
    ListRuns,
    Query,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
    SnapDebug,
)
from layby.core.model import Millis
from layby.core.replies import Reply, ok, refuse
from layby.store.api import Store


def read(store: Store, query: Query, now: Millis) -> Reply:
    match query:
        case SearchPromises():
            return ok(store.search_promises(query, now))
        case SearchTasks():
            return ok(store.search_tasks(query, now))
        case SearchSchedules():
            return ok(store.search_schedules(query))
        case GetRun():
            return ok(store.get_run(query, now))
        case ListRuns():
            return ok(store.list_runs(query, now))
        case ListHeld():
            return ok(store.list_held(query))
        case SnapDebug():
            return ok(store.dump())
        case _:
            return refuse(400, f"Unknown operation: {query.kind}")
