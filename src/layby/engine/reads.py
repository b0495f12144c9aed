"""Reads that are not by id: searches, what a holder holds, the snapshot."""

from layby.core import snapshot
from layby.core.flows import FindFlow
from layby.core.model import Millis
from layby.core.promises import NOT_FOUND
from layby.core.queries import (
    ExplainPromise,
    GetNow,
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ListWaiting,
    Query,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
    SnapDebug,
)
from layby.core.replies import NowData, Reply, ok, refuse
from layby.core.stats import GetStats
from layby.store.api import Store


def read(store: Store, query: Query, now: Millis) -> Reply:
    match query:
        case SearchPromises():
            return ok(store.search_promises(query, now))
        case SearchTasks():
            return ok(store.search_tasks(query, now))
        case SearchSchedules():
            return ok(store.search_schedules(query))
        case FindFlow():
            return ok(store.find_flow(query))
        case GetRun():
            return ok(store.get_run(query, now))
        case GetRecords():
            return ok(store.get_records(query, now))
        case ListRuns():
            return ok(store.list_runs(query, now))
        case ListHeld():
            return ok(store.list_held(query))
        case ListWaiting():
            return ok(store.list_waiting(query, now))
        case ExplainPromise():
            explanation = store.explain(query, now)
            return NOT_FOUND if explanation is None else ok(explanation)
        case GetNow():
            return ok(NowData(now))
        case GetStats():
            return ok(store.stats(now))
        case SnapDebug():
            return ok(snapshot.at(store.dump(), now))
        case _:
            return refuse(400, f"Unknown operation: {query.kind}")
