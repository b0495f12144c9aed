"""Random workflows under virtual time end as a naive executor says they must."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings

from layby import RetryPolicy, Run, RunCancelled, RunFailed, Runner, Workflow, task
from layby.testing import current_clock, run_virtual
from tests.helpers.flows import sound
from tests.helpers.random_flows import FUNCTIONS, Naive, Node, Scene, scenes


class World:
    """Builds the workflow of a scene and writes down what its bodies saw and did."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.seen: dict[str, list[dict[str, Any]]] = {node.id: [] for node in scene.nodes}
        self.checkpoints: Counter[tuple[str, str]] = Counter()
        self.holding = 0
        self.most = 0
        self.pool: Any = None

    def flow(self) -> Workflow:
        return Workflow("random", tasks=[self._task(node) for node in self.scene.nodes])

    def _task(self, node: Node):
        made = task(
            id=node.id,
            dependencies=node.after,
            rule=FUNCTIONS.get(node.rule, node.rule),
            retry=RetryPolicy(
                max_attempts=node.retrying.attempts,
                backoff=node.retrying.backoff,  # pyright: ignore[reportArgumentType]
                delay=node.retrying.delay,
                max_delay=node.retrying.max_delay,
            ),
        )
        return made(self._plain(node) if node.plain else self._async(node))

    def _async(self, node: Node):
        async def body(context, handle):
            returned = self._begin(node, context, handle)
            for step in node.steps:
                await self._async_step(node, step, context, handle, returned)
                self._look(handle)
            return self._end(node, returned)

        return body

    async def _async_step(self, node, step, context, handle, returned) -> None:
        match step:
            case "sleep", length:
                await handle.sleep(length)
            case "hold", length:
                await self._hold(length)
            case "defer", asked, interval:
                await handle.defer_until(_nth_time(asked), poll_interval=interval)
            case "wait", number, limit:
                await handle.wait_for(f"p{number}", limit)
            case "checkpoint", key:
                await handle.checkpoint(key, self._checkpoint, node.id, key)
            case _:
                _change(step, context, returned)

    def _plain(self, node: Node):
        def body(context, handle):
            returned = self._begin(node, context, handle)
            for step in node.steps:
                self._plain_step(node, step, context, handle, returned)
                self._look(handle)
            return self._end(node, returned)

        return body

    def _plain_step(self, node, step, context, handle, returned) -> None:
        match step:
            case (("sleep" | "hold"), length):  # a thread has no virtual time to hold a slot for
                handle.sleep(length)
            case "defer", asked, interval:
                handle.defer_until(_nth_time(asked), poll_interval=interval)
            case "wait", number, limit:
                handle.wait_for(f"p{number}", limit)
            case "checkpoint", key:
                handle.checkpoint(key, self._checkpoint, node.id, key)
            case _:
                _change(step, context, returned)

    def _begin(self, node: Node, context, handle) -> dict[str, Any]:
        self.seen[node.id].append(context.to_dict())
        self._look(handle)
        return {}

    def _end(self, node: Node, returned: dict[str, Any]) -> dict[str, Any] | None:
        if len(self.seen[node.id]) <= node.failing:
            raise ValueError(f"try {len(self.seen[node.id])} of {node.id}")
        return returned or None

    def _checkpoint(self, task_id: str, key: str) -> str:
        self.checkpoints[task_id, key] += 1
        return f"{key} of {task_id}"

    async def _hold(self, length: float) -> None:
        self.holding += 1
        self.most = max(self.most, self.holding)
        try:
            await asyncio.sleep(length)
        finally:
            self.holding -= 1

    def _look(self, handle) -> None:
        """Whoever runs holds a slot, and there are never more held than there are."""
        assert handle.is_slot_held()
        self.most = max(self.most, self.pool.held)


def _nth_time(count: int):
    left = [count]

    def is_true() -> bool:
        left[0] -= 1
        return left[0] <= 0

    return is_true


def _change(step, context, returned) -> None:
    match step:
        case "set", key, value:
            context[key] = value
        case "return", key, value:
            returned[key] = value
        case "remove", key:
            context.remove(key)


async def play(scene: Scene, world: World) -> tuple[Any, Any]:
    """The status of the run and its final context, after everything has come to rest."""
    async with Runner("memory:", slots=scene.slots) as runner:
        world.pool = runner.worker.credit
        run = await runner.start(world.flow(), scene.initial, run_id="r")
        await asyncio.gather(interfere(scene, runner), asyncio.wait([_result(run)]))
        await current_clock().advance(1_000)
        final = await _outcome(run)
        status = await run.status()
        await sound(runner)
        assert runner.worker.attempts == {}
        assert runner.worker.credit.held == 0
        return status, final


def _result(run: Run) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(_outcome(run))


async def _outcome(run: Run) -> Any:
    try:
        return (await run.result()).to_dict()
    except (RunFailed, RunCancelled) as error:
        return error


async def interfere(scene: Scene, runner: Runner) -> None:
    """What comes from outside, each at its moment."""
    settles = [(at, number) for number, (at, _) in enumerate(scene.promises)]
    clock = current_clock()
    for at, what in sorted([*settles, *scene.cancels], key=lambda each: each[0]):
        await asyncio.sleep(at - clock.elapsed)
        if what is None or isinstance(what, str):
            await runner.cancel("r", what)
        elif scene.promises[what][1]:
            await runner.resolve(f"p{what}", what)
        else:
            await runner.reject(f"p{what}", "no")


@settings(print_blob=True)
@given(scenes())
def test_random_workflows_end_as_they_must(scene: Scene):
    """Same outcomes, same contexts, same tries, never more slots, a sound store."""
    told = Naive(scene).execute()
    world = World(scene)
    status, final = run_virtual(play(scene, world))
    assert {each: one.status for each, one in status.tasks.items()} == {
        each: one.status for each, one in told.tasks.items()
    }
    assert status.state == told.state
    if scene.timed:
        assert_moments(status, told.tasks)
    assert world.seen == {each: one.seen for each, one in told.tasks.items()}
    assert world.most <= scene.slots
    assert max(world.checkpoints.values(), default=0) <= 1
    assert_checkpoints(world, told.tasks)
    if told.final is not None:
        assert final == told.final
    elif told.state == "Failed":
        assert isinstance(final, RunFailed)
        assert set(final.failed) == {
            each for each, one in told.tasks.items() if one.status in ("Failed", "Cancelled")
        }
    else:
        assert isinstance(final, RunCancelled)


def assert_moments(status: Any, tasks: Any) -> None:
    """Waits and back-offs last as long as they should; each poll may round up to a millisecond."""
    for task_id, ended in tasks.items():
        at = (status.tasks[task_id].settled_at - status.created_at) / 1000
        assert abs(at - ended.at) < 0.05


def assert_checkpoints(world: World, tasks: Any) -> None:
    """Every checkpoint that was reached ran once, whatever failed afterwards."""
    for task_id, ended in tasks.items():
        if ended.status != "Cancelled":
            ran = {key for each, key in world.checkpoints if each == task_id}
            assert ran == ended.checkpoints
