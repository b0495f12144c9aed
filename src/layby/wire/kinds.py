"""Which request struct each kind of the wire is decoded into."""

from typing import Any, Final

from layby.core import commands, queries
from layby.core.commands import Command
from layby.core.queries import Query
from layby.core.stats import GetStats

_PUBLIC: Final[tuple[type[Command | Query], ...]] = (
    commands.GetPromise,
    commands.CreatePromise,
    commands.SettlePromise,
    commands.RegisterCallback,
    commands.RegisterListener,
    queries.SearchPromises,
    commands.GetTask,
    commands.CreateTask,
    commands.AcquireTask,
    commands.ReleaseTask,
    commands.FulfillTask,
    commands.SuspendTask,
    commands.FenceTask,
    commands.HeartbeatTasks,
    commands.HaltTask,
    commands.ContinueTask,
    queries.SearchTasks,
    commands.GetSchedule,
    commands.CreateSchedule,
    commands.DeleteSchedule,
    queries.SearchSchedules,
    queries.StartDebug,
    queries.StopDebug,
    queries.ResetDebug,
    queries.TickDebug,
    queries.SnapDebug,
    commands.Take,
    commands.HeartbeatWorker,
    commands.LeaveWorker,
    commands.ReleaseTasks,
    queries.ListHeld,
    commands.FinishTask,
    commands.FailTask,
    commands.AnnotateTask,
    commands.ResolvePromise,
    commands.EnsurePromise,
    commands.WatchPromise,
    commands.CancelPromise,
    commands.StartRun,
    commands.CreateRunSchedule,
    queries.GetRun,
    queries.GetRecords,
    queries.DeclineTasks,
    queries.ListRuns,
    queries.ListWaiting,
    queries.ExplainPromise,
    GetStats,
    commands.CreateBelow,
)

KINDS: Final[dict[str, type[Any]]] = {each.kind: each for each in _PUBLIC}
