"""Random scripts of layby's own commands, mixed with protocol kinds on the same ids.

A script is a list of `(request, now)`. A paused world runs along while it is written, so that
versions are mostly right and time mostly jumps to where something is due. Two dialects: *early*
lets others make nodes pending before their turn (takes then ask for everything, because how many
such nodes one take puts back depends on how many rows it is shown); *scarce* has takes that ask
for little, of names that overlap.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.address import inbox_of, target_of
from layby.core.children import Caller
from layby.core.ids import life_id
from layby.core.model import NEVER
from layby.core.replies import PruneData
from layby.core.resumption import TRIGGER_GROUP
from layby.core.settings import Settings
from tests.helpers import requests as r
from tests.helpers.worlds import Timed, World

Pick = Callable[[Sequence[Any]], Any]
Script = list[Timed]

SMALL = Settings(retry_ms=30_000, max_crashes=2, hop_limit=3)
"""Limits so low that random scripts run into them."""
SMALL_STRICT = replace(SMALL, strict_lineage="colon", strict_external=True)
"""The same under the strict profile."""
CHUNK = 4
START = 1_000_000

_RUNS = ("run/a", "run/b", "c")
_NODES = ("w", "x", "y", "z")
_NAMES = ("f", "g")
_PIDS = ("p", "q")
_INCARNATIONS = ("1", "2", "3")
_PLAIN = ("e", "e.1", "s1")
_ALL = 50
_VALUES = (c.NOTHING, c.Value(data="eA=="), c.Value(headers={}, data=""))
_SETTLEMENT_IDS = (None, "one", "other")
_STATES = ("resolved", "rejected", "rejected_canceled")
_TAGS: tuple[c.Tags, ...] = ({}, {"resonate:timer": "true"}, {"resonate:branch": "r"})
_STRICT_TAGS: tuple[c.Tags, ...] = ({}, {}, {"resonate:external": "true"}, *_TAGS)
_SHARED_KINDS = (
    *("start",) * 5,
    *("rerun",) * 2,
    *("map",) * 4,
    *("take",) * 8,
    *("finish",) * 9,
    *("fail",) * 3,
    *("defer",) * 4,
    *("defer_until_child",),
    *("wake", "extend"),
    *("heartbeat",) * 3,
    *("leave",),
    *("hand_back",) * 3,
    *("annotate",) * 2,
    *("resolve", "ensure", "create", "create") * 2,
    *("cancel",) * 2,
    *("settle", "settle", "listener"),
    *("release", "beat", "get", "task_get"),
    *("schedule", "run_schedule", "run_schedule", "drop_schedule"),
    *("pause_schedule", "unpause_schedule", "start_scheduled"),
    *("tick",) * 6,
    *("snap",),
)
_EARLY_KINDS = (*("halt", "resume", "callback") * 2, *("acquire", "suspend", "fence", "task") * 2)

_PRUNING_KINDS = (*("prune",) * 10, *("cancel", "settle", "finish") * 5)


@st.composite
def run_scripts(
    draw: st.DrawFn,
    *,
    early: bool,
    max_steps: int = 50,
    settings: Settings = SMALL,
    prunes: bool = False,
) -> Script:
    """Random scripts that Hypothesis can shrink."""
    steps = draw(st.integers(5, max_steps))
    pick = lambda options: draw(st.sampled_from(options))  # noqa: E731 - a name for the line below
    return write(pick, steps, settings, early=early, prunes=prunes)


def seeded_run_script(
    seed: int, steps: int, *, early: bool, settings: Settings = SMALL, prunes: bool = False
) -> Script:
    """A long random script that its seed names."""
    return write(random.Random(seed).choice, steps, settings, early=early, prunes=prunes)


def write(
    pick: Pick, steps: int, settings: Settings, *, early: bool, prunes: bool = False
) -> Script:
    """`prunes`: everything ends sooner, and is pruned now and then."""
    with World(settings=settings, chunk=CHUNK) as world:
        writer = _Writer(pick, world, early=early, strict=settings.strict_external, prunes=prunes)
        return writer.write(steps)


class _Writer:
    """Writes one script, choosing each step with an eye on where the world stands."""

    def __init__(
        self, pick: Pick, world: World, *, early: bool, strict: bool, prunes: bool
    ) -> None:
        self._pick = pick
        self._world = world
        self._early = early
        self._kinds = _SHARED_KINDS + (_EARLY_KINDS if early else ())
        self._kinds += _PRUNING_KINDS if prunes else ()
        self._plain_tags = _STRICT_TAGS if strict else _TAGS
        self._state = world.dump()
        self.now = START
        self.script: Script = []
        self._left_at = ""

    def write(self, steps: int) -> Script:
        self._add(self._start())
        for _ in range(steps):
            self._pass_time()
            kind = self._pick(self._kinds)
            self._add(getattr(self, f"_{kind}")())
        self._add(q.TickDebug(time=self.now))
        return self.script

    def _add(self, request: c.Command | q.Query) -> None:
        reply = self._world.send(request, self.now)
        if isinstance(reply.data, PruneData):
            self._left_at = reply.data.cursor or ""
        self._state = self._world.dump()
        self.script.append((request, self.now))

    # --- choices ---

    def _chance(self, one_in: int) -> bool:
        return bool(self._pick(range(one_in)) == one_in - 1)

    def _pass_time(self) -> None:
        jump = self._pick((0, 0, 0, 0, 0, 1, 10, 900, "due", "due"))
        if jump == "due":
            jump = max(0, self._next_deadline() + self._pick((0, 0, 1, -1)) - self.now)
        self.now += jump

    def _next_deadline(self) -> int:
        state = self._state
        due = [p.timeout_at for p in state.promises.values() if p.is_pending]
        due += [t.wake_at for t in state.tasks.values() if t.wake_at is not None]
        due += [h.expires_at for h in state.holders.values() if h.is_alive]
        due += [s.next_run_at for s in state.schedules.values()]
        return min((at for at in due if self.now < at < self.now + 300_000), default=self.now)

    def _known(self, ids: Iterable[str]) -> str:
        """Mostly one of these, which are there; sometimes any."""
        found = sorted(ids)
        return self._pick(found) if found and not self._chance(8) else self._pick(_PLAIN)

    def _any_id(self) -> str:
        return self._known(key for key, p in self._state.promises.items() if p.is_pending)

    def _task_in(self, *states: str) -> str:
        return self._known(key for key, t in self._state.tasks.items() if t.state in states)

    def _version(self, task_id: str) -> int:
        task = self._state.tasks.get(task_id)
        return task.version if task is not None and not self._chance(8) else self._pick(range(4))

    def _timeout(self) -> int:
        return self.now + self._pick((10_000_000, 10_000_000, 400_000, 20_000, 1_000))

    def _map(self) -> c.AddItems:
        """Portions come twice, too early or too late; some calls have failed before."""
        caller = self._task_in("acquired")
        first = self._pick((0, 0, 0, 2))
        items = tuple(self._pick(_VALUES) for _ in range(self._pick((0, 1, 2, 3))))
        return c.AddItems(
            id=caller,
            version=self._version(caller),
            join_id=f"{caller}:map/{self._pick((1, 1, 2))}",
            task="m:f",
            items=items,
            first=first,
            is_last=self._chance(2),
            param=self._pick(_VALUES),
            collects=self._chance(3),
            earlier=(f"{caller}:map/1",) if self._chance(4) else (),
            keeps=(f"{caller}:map/{self._pick((1, 2))}",) if self._chance(3) else (),
            limit=self._pick((None, None, 1, 2)),
        )

    def _maybe_take(self) -> c.Take | None:
        return self._take() if self._chance(2) else None

    # --- layby's commands ---

    def _start(self) -> c.StartRun:
        size = self._pick((1, 2, 3, 4))
        names = _NODES[:size]
        ordinary = self._pick(range(1, size + 1)) if self._chance(3) else size
        nodes = tuple(
            c.Node(
                id=name,
                name=self._pick(_NAMES),
                after=tuple(before for before in names[:at] if self._chance(2)),
                param=self._pick(_VALUES),
                cleanup=at >= ordinary,
                priority=self._pick((0, 0, 0, 0, 1, -1)),
                slots=self._pick((1, 1, 1, 1, 2)),
            )
            for at, name in enumerate(names)
        )
        timeout = self._timeout() - self.now - (self._chance(12) and 10_000_000)
        return c.StartRun(
            id=f"{self._pick(_RUNS)}{len(self.script) // 20}",
            name="root",
            group="g",
            nodes=nodes,
            timeout=max(0, timeout),
            take=self._maybe_take(),
            caller=self._caller(),
            life=self._pick((1, 1, 1, 2)),
        )

    def _caller(self) -> Caller | None:
        """Often nobody; else mostly a task of a run that somebody runs."""
        tasks = self._state.tasks.items()
        running = [key for key, each in tasks if each.state == "acquired" and ":" in key]
        if not running or self._chance(3):
            return None
        task_id = self._known(running)
        return Caller(task_id, self._version(task_id), detach=self._chance(5))

    def _rerun(self) -> c.RerunRun:
        """Mostly of a run that has ended, and mostly the life it should be."""
        roots = [key for key, task in self._state.tasks.items() if task.is_root and ":" not in key]
        over = [key for key in roots if not self._state.promises[key].is_pending]
        run_id = self._known(over if over and not self._chance(4) else roots)
        first = self._state.tasks.get(run_id)
        lives = (first.lives if first is not None else None) or 1
        nodes: list[c.NodeAgain] = []
        for name in _NODES:
            lived = [n for n in range(1, lives + 1) if self._has_node(run_id, n, name)]
            if lived and not self._chance(3):
                after = tuple(node.id for node in nodes if self._chance(2))
                succeeded = not self._chance(6)
                is_last = name == _NODES[-1] and self._chance(2)
                keep = self._chance(2)
                nodes.append(c.NodeAgain(name, lived[-1], after, succeeded, is_last, keep))
        return c.RerunRun(
            id=run_id,
            life=lives + (1 if not self._chance(6) else self._pick((0, 2))),
            nodes=tuple(nodes),
            timeout=max(1, self._timeout() - self.now),
            param=self._pick(_VALUES),
            caller=self._caller(),
        )

    def _has_node(self, run_id: str, life: int, name: str) -> bool:
        return f"{life_id(run_id, life)}:{name}" in self._state.tasks

    def _take(self) -> c.Take:
        names = ("f", "g", "root") if self._early else self._pick((("f",), ("g", "f"), ("root",)))
        begun = self._begun()
        ahead = self._state.tasks.get(begun[0].id) if begun else None
        group = self._pick(("g", "g", "g", TRIGGER_GROUP)) if ahead is None else ahead.group
        return c.Take(
            pid=ahead.pid if ahead and ahead.pid else self._pid_in(group),
            incarnation=ahead.holder if ahead and ahead.holder else self._incarnation(),
            group=group or "g",
            names=names,
            free=_ALL if self._early else self._pick((1, 1, 2, 0)),
            ttl=self._pick((5_000, 60_000, 1)),
            embedded=self._chance(4),
            ahead=self._pick((0, 0, 0, 1, 2)),
            before=self._pick((None, None, None, None, self.now, self.now - 10)),
            before_priority=self._pick((0, 0, 0, 1)),
            oldest=self._chance(5),
            slots=self._pick((0, 0, 1)),
            in_line=self._chance(4),
            begun=begun,
        )

    def _pid_in(self, group: str | None) -> str:
        """A process runs triggers or other tasks: a holder belongs to one group."""
        return self._pick(_PIDS) if group != TRIGGER_GROUP else "m"

    def _begun(self) -> tuple[c.TaskVersion, ...]:
        """Mostly one that is ahead; now and then a claim that is not."""
        if self._chance(2):
            return ()
        ahead = [key for key, task in self._state.tasks.items() if task.ahead]
        task_id = self._known(ahead) if ahead else self._task_in("acquired")
        return (c.TaskVersion(task_id, self._version(task_id)),)

    def _hand_back(self) -> c.ReleaseTasks:
        """By its holder, mostly: also of what was halted, and continued since."""
        task_id = self._known(key for key, t in self._state.tasks.items() if t.holder is not None)
        task = self._state.tasks.get(task_id)
        is_right = task is not None and task.pid and task.holder and not self._chance(6)
        released = c.Released(
            task_id,
            self._version(task_id),
            ready_at=self._pick((None, self.now, self.now - 10, self.now + 10)),
            begun=self._chance(2),
            delay=self._pick((0, 0, 0, 50)),
            history=self._pick((None, '"told"')),
        )
        return c.ReleaseTasks(
            pid=task.pid if task and task.pid and is_right else self._pick(_PIDS),
            incarnation=task.holder if task and task.holder and is_right else self._incarnation(),
            tasks=(released,),
        )

    def _verdict(self) -> c.RootVerdict | None:
        if self._chance(2):
            return None
        return c.RootVerdict(self._pick(_STATES), self._pick(_VALUES))

    def _incarnation(self) -> str:
        living = [h.incarnation for h in self._state.holders.values() if h.is_alive]
        return self._pick(living) if living and not self._chance(6) else self._pick(_INCARNATIONS)

    def _finish(self) -> c.FinishTask:
        task_id = self._task_in("acquired")
        return c.FinishTask(
            id=task_id,
            version=self._version(task_id),
            value=self._pick(_VALUES),
            state=self._pick(_STATES),
            take=self._maybe_take(),
            root=self._verdict(),
        )

    def _fail(self) -> c.FailTask:
        task_id = self._task_in("acquired")
        retry_in = self._pick((None, 0, 5, 2_000))
        return c.FailTask(
            id=task_id,
            version=self._version(task_id),
            error=self._pick(_VALUES),
            retry_in=retry_in,
            take=self._maybe_take(),
            root=self._verdict(),
            still_running=self._chance(4),
        )

    def _defer_until_child(self) -> c.DeferTask:
        """Of a task that has started one, if there is any; else as any other."""
        notes = (each for each in self._state.waits.values() if each.is_child)
        callers = [each for each in notes if self._state.tasks[each.awaiter].state == "acquired"]
        if not callers:
            return self._defer()
        wait = self._pick(callers)
        spec = r.trigger("PromiseSettled", id=wait.awaited)
        return r.defer(wait.awaiter, self._version(wait.awaiter), spec)

    def _defer(self) -> c.DeferTask:
        task_id = self._task_in("acquired")
        spec = self._pick(
            (
                r.trigger("Delay", ms=self._pick((0, 900, 20_000))),
                r.trigger("At", at=self.now + self._pick((-5, 5, 900))),
                r.trigger("Event", name=self._pick(_PLAIN)),
                r.trigger("PromiseSettled", id=self._any_id()),
                r.trigger("f"),
                r.trigger("g", on_cancel=True),
            )
        )
        timeout = self._pick((None, None, 0, 900, 5_000))
        defer = r.defer(task_id, self._version(task_id), spec, timeout, self._pick((None, "go_on")))
        return replace(defer, take=self._maybe_take())

    def _deferred(self) -> str:
        return self._known(key for key, t in self._state.tasks.items() if t.open_resumption)

    def _exit_id(self) -> str:
        return f"exit-{len(self.script) // self._pick((1, 1, 1, 10))}"

    def _wake(self) -> c.WakeTask:
        return c.WakeTask(
            id=self._deferred(),
            exit_id=self._exit_id(),
            state=self._pick(_STATES),
            value=self._pick(_VALUES),
            by="me",
        )

    def _extend(self) -> c.ExtendWait:
        timeout = self._pick((None, 0, 900, 20_000))
        return c.ExtendWait(id=self._deferred(), exit_id=self._exit_id(), timeout=timeout)

    def _heartbeat(self) -> c.HeartbeatWorker:
        return c.HeartbeatWorker(
            pid=self._pick((*_PIDS, "m")),
            incarnation=self._incarnation(),
            held=self._pick((None, 0, 1)),
        )

    def _leave(self) -> c.LeaveWorker:
        return c.LeaveWorker(pid=self._pick(_PIDS), incarnation=self._incarnation())

    def _annotate(self) -> c.AnnotateTask:
        task_id = self._task_in("acquired")
        sub_status = self._pick(("Deferred", "Active", None))
        return c.AnnotateTask(id=task_id, version=self._version(task_id), sub_status=sub_status)

    def _resolve(self) -> c.ResolvePromise:
        return c.ResolvePromise(
            id=self._pick(_PLAIN),
            value=self._pick(_VALUES),
            state=self._pick(_STATES),
            settlement_id=self._pick(_SETTLEMENT_IDS),
        )

    def _ensure(self) -> c.EnsurePromise:
        awaiter = self._task_in("pending", "acquired", "suspended") if self._chance(2) else None
        settled = sorted(key for key, p in self._state.promises.items() if not p.is_pending)
        return c.EnsurePromise(id=self._pick((*_PLAIN, "run/none", *settled[:5])), awaiter=awaiter)

    def _cancel(self) -> c.CancelPromise:
        return c.CancelPromise(
            id=self._any_id(),
            by="me",
            reason="enough",
            settlement_id=self._pick(_SETTLEMENT_IDS),
        )

    def _prune(self) -> c.Prune:
        lengths = (None, 0, 0, 0, 1_000)
        return c.Prune(
            completed=self._pick(lengths),
            failed=self._pick(lengths),
            ids=self._pick(lengths),
            foreign=self._chance(2),
            dry_run=self._chance(6),
            limit=self._pick((2, 3, 5, 100)),
            cursor=self._cursor,
        )

    @property
    def _cursor(self) -> str:
        """Where the last batch ended, or the beginning, or anywhere."""
        return self._pick(
            ("", self._left_at, self._left_at, '[4,-1,"",null,0]', '[5,-1,"",null,0]')
        )

    # --- protocol kinds that meet the same rows ---

    def _create(self) -> c.CreatePromise:
        tags = self._pick(self._plain_tags)
        if self._chance(2):
            target = self._pick(("poll://any@other", target_of("g")))
            tags = tags | {"resonate:target": target, "layby:name": "f"}
        return c.CreatePromise(id=self._plain(), timeout_at=self._timeout(), tags=tags)

    def _plain(self) -> str:
        return f"{self._pick(_PLAIN)}{self._pick(('', f'-{len(self.script) // 20}'))}"

    def _settle(self) -> c.SettlePromise:
        return c.SettlePromise(id=self._any_id(), state=self._pick(_STATES))

    def _listener(self) -> c.RegisterListener:
        address = self._pick(("poll://uni@other/w", inbox_of("g", "p")))
        internal = [key for key, p in self._state.promises.items() if p.internal]
        awaited = self._pick(internal) if internal and self._chance(4) else self._any_id()
        return c.RegisterListener(awaited=awaited, address=address)

    def _release(self) -> c.ReleaseTask:
        task_id = self._task_in("acquired")
        return c.ReleaseTask(id=task_id, version=self._version(task_id))

    def _beat(self) -> c.HeartbeatTasks:
        task_id = self._task_in("acquired")
        named = [c.TaskVersion(task_id, self._version(task_id))]
        return c.HeartbeatTasks(pid=self._pick(_PIDS), tasks=self._pick((named, [])))

    def _get(self) -> c.GetPromise:
        return c.GetPromise(id=self._any_id())

    def _task_get(self) -> c.GetTask:
        return c.GetTask(id=self._task_in("pending", "acquired", "suspended"))

    def _schedule(self) -> c.CreateSchedule:
        target = self._pick(("poll://any@other", target_of("g")))
        return c.CreateSchedule(
            id="s",
            cron="* * * * *",
            promise_id=self._pick(("s{{.timestamp}}", "s1")),
            promise_timeout=self._pick((90_000, 10)),
            promise_tags={"resonate:target": target, "layby:name": "g"},
        )

    def _run_schedule(self) -> c.CreateRunSchedule:
        run = self._start()
        return c.CreateRunSchedule(
            id=self._pick(("s", "t")),
            cron=self._pick(("* * * * *", "*/20 * * * * *")),
            timezone=self._pick(("UTC", "Asia/Kolkata")),
            catch_up=self._chance(2),
            name=run.name,
            group=run.group,
            nodes=run.nodes,
            timeout=self._pick((NEVER, 90_000, 10)),
            overlap=self._pick(("allow", "skip", "queue_one")),
            replace=self._chance(2),
        )

    def _pause_schedule(self) -> c.PauseSchedule:
        return c.PauseSchedule(id=self._pick(("s", "t")))

    def _unpause_schedule(self) -> c.UnpauseSchedule:
        return c.UnpauseSchedule(id=self._pick(("s", "t")))

    def _start_scheduled(self) -> c.StartScheduled:
        return c.StartScheduled(id=self._pick(("s", "t")), at=self.now, key=self._pick("ab"))

    def _drop_schedule(self) -> c.DeleteSchedule:
        return c.DeleteSchedule(id=self._pick(("s", "t")))

    def _tick(self) -> q.TickDebug:
        return q.TickDebug(time=self.now)

    def _snap(self) -> q.SnapDebug:
        return q.SnapDebug()

    # --- what makes nodes pending before their turn ---

    def _halt(self) -> c.HaltTask:
        return c.HaltTask(id=self._task_in("pending", "acquired", "suspended"))

    def _resume(self) -> c.ContinueTask:
        return c.ContinueTask(id=self._task_in("halted"))

    def _callback(self) -> c.RegisterCallback:
        awaiter = self._task_in("suspended", "pending")
        return c.RegisterCallback(awaited=self._any_id(), awaiter=awaiter)

    def _acquire(self) -> c.AcquireTask:
        task_id = self._task_in("pending")
        version = self._version(task_id)
        return c.AcquireTask(id=task_id, version=version, pid=self._pick(_PIDS), ttl=5_000)

    def _suspend(self) -> c.SuspendTask:
        task_id = self._task_in("acquired")
        waits = [self._any_id() for _ in range(self._pick((1, 2)))]
        actions = [
            c.SuspendAction("", None, c.RegisterCallback(awaited=awaited, awaiter=task_id))
            for awaited in waits
        ]
        return c.SuspendTask(id=task_id, version=self._version(task_id), actions=actions)

    def _fence(self) -> c.FenceTask:
        task_id = self._task_in("acquired")
        inner = self._pick((self._create, self._settle))()
        return c.FenceTask(id=task_id, version=self._version(task_id), inner=inner)

    def _task(self) -> c.CreateTask:
        tags = {"resonate:target": "poll://any@other", "resonate:branch": "r"}
        action = c.CreatePromise(id=self._plain(), timeout_at=NEVER - 1, tags=tags)
        return c.CreateTask(
            pid=self._pick(_PIDS), ttl=5_000, action=c.CreateAction("", None, action)
        )
