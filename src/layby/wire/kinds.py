"""Which request struct each kind of the wire is decoded into."""

from typing import Any, Final

from layby.core import commands
from layby.core.commands import Command, Query
from layby.core.stats import GetStats

_PUBLIC: Final[tuple[type[Command | Query], ...]] = (
    commands.GetPromise,
    commands.CreatePromise,
    commands.SettlePromise,
    commands.RegisterCallback,
    commands.RegisterListener,
    commands.SearchPromises,
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
    commands.SearchTasks,
    commands.GetSchedule,
    commands.CreateSchedule,
    commands.DeleteSchedule,
    commands.SearchSchedules,
    commands.StartDebug,
    commands.StopDebug,
    commands.ResetDebug,
    commands.TickDebug,
    commands.SnapDebug,
    commands.Take,
    commands.HeartbeatWorker,
    commands.LeaveWorker,
    commands.ListHeld,
    commands.FinishTask,
    commands.FailTask,
    commands.AnnotateTask,
    commands.ResolvePromise,
    commands.EnsurePromise,
    commands.WatchPromise,
    commands.CancelPromise,
    commands.StartRun,
    commands.CreateRunSchedule,
    commands.GetRun,
    commands.GetRecords,
    commands.DeclineTasks,
    commands.ListRuns,
    commands.ListWaiting,
    commands.ExplainPromise,
    GetStats,
)

KINDS: Final[dict[str, type[Any]]] = {each.kind: each for each in _PUBLIC}
