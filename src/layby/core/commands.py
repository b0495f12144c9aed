"""Every command of the protocol and of layby, from the modules that declare them."""

from layby.core.approvals import AnswerApproval
from layby.core.blocks import (
    BlockTask,
    ContinueBlocked,
    PinRun,
)
from layby.core.deferral import (
    DeferTask,
    ResumeSpec,
    TriggerSpec,
)
from layby.core.exits import (
    ExtendWait,
    WakeTask,
)
from layby.core.fields import (
    MAX_CLAIMS,
    NOTHING,
    Int64,
    Tags,
    Unread,
    Value,
)
from layby.core.flows import (
    PublishFlow,
)
from layby.core.held_tasks import (
    AnnotateTask,
    CreateBelow,
    ExpireWait,
)
from layby.core.kinds import (
    Command,
)
from layby.core.limits import (
    DeleteLimit,
    SetLimit,
)
from layby.core.links import (
    MakeLink,
)
from layby.core.lives import (
    NodeAgain,
    RerunRun,
    WatchRun,
)
from layby.core.maps import (
    AddItems,
)
from layby.core.named_limits import (
    LimitTask,
)
from layby.core.promises import (
    CancelPromise,
    CreatePromise,
    EnsurePromise,
    GetPromise,
    RegisterCallback,
    RegisterListener,
    ResolvePromise,
    SettlePromise,
    WatchPromise,
)
from layby.core.pruning import (
    Prune,
)
from layby.core.regaining import (
    RegainPermits,
)
from layby.core.run_schedules import (
    CreateRunSchedule,
    PauseSchedule,
    StartScheduled,
    UnpauseSchedule,
)
from layby.core.runs import (
    Node,
    StartRun,
)
from layby.core.schedules import (
    CreateSchedule,
    DeleteSchedule,
    GetSchedule,
)
from layby.core.takes import (
    Take,
)
from layby.core.tasks import (
    AcquireTask,
    ContinueTask,
    CreateAction,
    CreateTask,
    FenceTask,
    FulfillTask,
    GetTask,
    HaltTask,
    HeartbeatTasks,
    ReleaseTask,
    RenewLeases,
    SettleAction,
    SuspendAction,
    SuspendTask,
    TaskVersion,
)
from layby.core.tries import (
    FailTask,
    FinishTask,
    RootVerdict,
)
from layby.core.workers import (
    CheckHolder,
    HeartbeatWorker,
    LeaveWorker,
    PollReport,
    Released,
    ReleaseTasks,
)

__all__ = [
    "MAX_CLAIMS",
    "NOTHING",
    "AcquireTask",
    "AddItems",
    "AnnotateTask",
    "AnswerApproval",
    "BlockTask",
    "CancelPromise",
    "CheckHolder",
    "Command",
    "ContinueBlocked",
    "ContinueTask",
    "CreateAction",
    "CreateBelow",
    "CreatePromise",
    "CreateRunSchedule",
    "CreateSchedule",
    "CreateTask",
    "DeferTask",
    "DeleteLimit",
    "DeleteSchedule",
    "EnsurePromise",
    "ExpireWait",
    "ExtendWait",
    "FailTask",
    "FenceTask",
    "FinishTask",
    "FulfillTask",
    "GetPromise",
    "GetSchedule",
    "GetTask",
    "HaltTask",
    "HeartbeatTasks",
    "HeartbeatWorker",
    "Int64",
    "LeaveWorker",
    "LimitTask",
    "MakeLink",
    "Node",
    "NodeAgain",
    "PauseSchedule",
    "PinRun",
    "PollReport",
    "Prune",
    "PublishFlow",
    "RegainPermits",
    "RegisterCallback",
    "RegisterListener",
    "ReleaseTask",
    "ReleaseTasks",
    "Released",
    "RenewLeases",
    "RerunRun",
    "ResolvePromise",
    "ResumeSpec",
    "RootVerdict",
    "SetLimit",
    "SettleAction",
    "SettlePromise",
    "StartRun",
    "StartScheduled",
    "SuspendAction",
    "SuspendTask",
    "Tags",
    "Take",
    "TaskVersion",
    "TriggerSpec",
    "UnpauseSchedule",
    "Unread",
    "Value",
    "WakeTask",
    "WatchPromise",
    "WatchRun",
]
