"""Random lives of each executor, compared with the model after every step.

Each step ends in the one state the model predicts, so a lost wake-up shows as a step that never
gets there, and a double count as one that goes past it.
"""

import asyncio
import os
import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from layby.executors import (
    AsyncTaskExecutor,
    AsyncTaskExecutorConfig,
    CancellationSource,
    DeterministicTaskExecutor,
    ProcessTaskExecutor,
    ProcessTaskExecutorConfig,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.executors.executor_config import OverflowPolicy, ShutdownPolicy
from tests.executors.model import ModelExecutor
from tests.helpers import process_work
from tests.helpers.waiting import PATIENCE, Gate, assert_identities, eventually, settled

overflows = st.sampled_from(get_args(OverflowPolicy))
shutdowns = st.sampled_from(get_args(ShutdownPolicy))
few = st.integers(0, 3)


def requested_token():
    source = CancellationSource()
    source.request_cancel()
    return source.token()


class Machine(RuleBasedStateMachine):
    """What all lives have in common: told exactly once, by callback or by discard."""

    executor: Any = None
    model: Any = None

    def begin(self):
        self.called, self.discarded = Counter(), Counter()

    def on_completion(self, done):
        self.called[done.task_id] += 1

    def on_discard(self, task_id, _reason):
        self.discarded[task_id] += 1

    def check_submission(self, submission):
        expected = self.model.submit()
        if isinstance(expected, int):
            assert submission == (True, expected, "")
        else:
            assert submission == (False, 0, expected)
        return submission.accepted

    def settle(self):
        raise NotImplementedError

    @rule(max_tasks=few)
    def drain(self, max_tasks):
        done = self.executor.run_ready(max_tasks)
        assert [completion.task_id for completion in done] == self.model.drain(max_tasks)
        self.settle()

    @rule()
    def drain_with_token(self):
        self.model.tokens_seen += 1
        self.model.cancel_pending()
        done = self.executor.run_ready(0, requested_token())
        assert [completion.task_id for completion in done] == self.model.drain(0)
        self.settle()

    @rule()
    def cancel_pending(self):
        assert self.executor.cancel_pending() == self.model.cancel_pending()
        self.settle()

    @invariant()
    def counters_agree(self):
        if self.executor is None:
            return
        metrics = self.executor.metrics()
        assert metrics == self.model.metrics()
        assert_identities(metrics)
        assert metrics.max_inflight_count >= metrics.queue_depth + metrics.active_count
        assert metrics.active_count <= self.model.concurrency
        assert self.called == Counter(self.model.completed + self.model.failed)
        assert self.discarded == Counter(self.model.cancelled)


class DeterministicMachine(Machine):
    @initialize(overflow=overflows, inflight=few, queue=few)
    def start(self, overflow, inflight, queue):
        self.begin()
        config = TaskExecutorConfig(max_inflight=inflight, queue_capacity=queue, overflow=overflow)
        self.executor = DeterministicTaskExecutor(config, on_discard=self.on_discard)
        self.model = ModelExecutor(
            capacity=max(inflight, 1) + queue,
            overflow=overflow,
            concurrency=0,
            counts_running=False,
            keeps=False,
        )
        self.fates = {}

    def settle(self):
        pass

    @rule(ok=st.booleans())
    def submit(self, ok):
        submission = self.executor.submit(
            (lambda: 1) if ok else partial(process_work.fail, "no"), self.on_completion
        )
        if self.check_submission(submission):
            self.fates[submission.task_id] = ok

    @rule(max_tasks=few)
    def drain(self, max_tasks):
        expected = self.model.pending[: max_tasks or None]
        for task in expected:
            self.model.pending.remove(task)
            self.model.line.remove(task)
            self.model.end(task, ok=self.fates[task])
        done = self.executor.run_ready(max_tasks)
        assert [(one.task_id, one.ok) for one in done] == [(t, self.fates[t]) for t in expected]

    @rule()
    def drain_with_token(self):
        if self.model.pending:
            self.model.tokens_seen += 1
        self.model.cancel_pending()
        assert self.executor.run_ready(0, requested_token()) == []

    @precondition(lambda self: self.model.pending)
    @rule(data=st.data())
    def cancel(self, data):
        task = data.draw(st.sampled_from(self.model.pending))
        self.model.cancel(task)
        assert self.executor.cancel(task)
        assert not self.executor.cancel(task)


class WorkerMachine(Machine):
    """Threads and processes differ in what a task is made of, and in who can be killed."""

    can_kill = False

    def open_executor(self, **config):
        raise NotImplementedError

    def new_task(self):
        raise NotImplementedError

    @initialize(
        overflow=overflows,
        inflight=few,
        queue=few,
        workers=few,
        shutdown=shutdowns,
        keeps=st.booleans(),
    )
    def start(self, overflow, inflight, queue, workers, shutdown, keeps):
        self.begin()
        self.gates = {}
        self.model = ModelExecutor(
            capacity=max(inflight, 1) + queue,
            overflow=overflow,
            concurrency=min(max(inflight, 1), max(workers, 1)),
            keeps=keeps,
        )
        self.executor = self.open_executor(
            keep_completions=keeps,
            max_inflight=inflight,
            queue_capacity=queue,
            overflow=overflow,
            max_workers=workers,
            shutdown_policy=shutdown,
        )

    def settle(self):
        for task in self.model.active:
            self.gates[task].wait_until_started()
        eventually(lambda: self.executor.metrics() == self.model.metrics())
        eventually(lambda: self.discarded == Counter(self.model.cancelled))

    @rule()
    def submit(self):
        gate = self.new_task()
        submission = self.executor.submit(gate.work, self.on_completion)
        if self.check_submission(submission):
            self.gates[submission.task_id] = gate
        self.settle()

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data, ok):
        task = data.draw(st.sampled_from(self.model.active))
        self.gates[task].end(ok=ok)
        self.model.end(task, ok=ok)
        self.settle()

    @precondition(lambda self: self.model.pending or self.model.active)
    @rule(data=st.data())
    def cancel(self, data):
        task = data.draw(st.sampled_from(self.model.pending + self.model.active))
        possible = self.can_kill or task in self.model.pending
        assert self.executor.cancel(task) is possible
        if possible:
            self.model.cancel(task)
        self.settle()

    @rule()
    def shut_down_at_once(self):
        self.model.closing = True
        self.model.cancel_pending()
        if self.can_kill:
            for task in list(self.model.active):
                self.model.cancel(task)
        self.executor.shutdown(timeout=0)
        self.settle()

    def teardown(self):
        if self.executor is not None:
            self.executor.cancel_pending()  # their gates cannot be opened before they start
            for gate in self.gates.values():
                gate.end(ok=True)
            assert self.executor.shutdown(PATIENCE)
            assert self.executor.wait_for_idle(0)


class ThreadGate(Gate):
    @property
    def work(self):
        return self

    def end(self, *, ok):
        if not ok:
            self.error = RuntimeError("no")
        self.open()


class ThreadedMachine(WorkerMachine):
    def open_executor(self, *, keep_completions, **config):
        return ThreadedTaskExecutor(
            ThreadedTaskExecutorConfig(**config),
            on_discard=self.on_discard,
            keep_completions=keep_completions,
        )

    def new_task(self):
        return ThreadGate()


class PipeGate:
    """A task in another process: it runs once it reads from its pipe, and ends with the pipe."""

    def __init__(self, folder, number):
        self.path = Path(folder) / str(number)
        os.mkfifo(self.path)
        self.work = partial(process_work.read_verdict, str(self.path))
        self._writer = None

    def wait_until_started(self):
        if self._writer is None:
            eventually(self._connect)

    def _connect(self):
        try:
            self._writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False  # nobody reads yet
        return True

    def end(self, *, ok):
        if self._writer is None:
            return
        with suppress(BrokenPipeError):  # killed
            os.write(self._writer, b"ok" if ok else b"no")
        os.close(self._writer)
        self._writer = None


class ProcessMachine(WorkerMachine):
    can_kill = True

    def open_executor(self, *, keep_completions, **config):
        self.folder = tempfile.TemporaryDirectory()
        return ProcessTaskExecutor(
            ProcessTaskExecutorConfig(**config, start_method="forkserver"),
            on_discard=self.on_discard,
            keep_completions=keep_completions,
        )

    def new_task(self):
        self.tasks_made = getattr(self, "tasks_made", 0) + 1
        return PipeGate(self.folder.name, self.tasks_made)

    def teardown(self):
        super().teardown()
        if self.executor is not None:
            self.folder.cleanup()


class AsyncMachine(Machine):
    @initialize(
        overflow=overflows, inflight=few, queue=few, shutdown=shutdowns, keeps=st.booleans()
    )
    def start(self, overflow, inflight, queue, shutdown, keeps):
        self.begin()
        self.loop = asyncio.new_event_loop()
        self.bodies, self.resuming, self.patient = {}, [], []
        config = AsyncTaskExecutorConfig(
            max_inflight=inflight, queue_capacity=queue, overflow=overflow, shutdown_policy=shutdown
        )
        self.executor = AsyncTaskExecutor(
            config, on_discard=self.on_discard, keep_completions=keeps
        )
        self.model = ModelExecutor(
            capacity=max(inflight, 1) + queue,
            overflow=overflow,
            concurrency=max(inflight, 1),
            keeps=keeps,
        )

    def settle(self):
        self.loop.run_until_complete(settled())
        while self.patient and (self.model.closing or not self.must_wait()):
            steps, waiting = self.patient.pop(0)
            assert waiting.done(), "a submitter was not called although there is room"
            self.admitted(steps, waiting.result())
        assert not any(waiting.done() for _, waiting in self.patient)
        pool = self.executor.pool
        assert pool.held == len(self.model.active)
        assert pool.waiting == len(self.model.line)

    def must_wait(self):
        dropping = self.model.overflow in ("drop_oldest", "overwrite") and self.model.pending
        full_of_records = len(self.model.undrained) >= self.model.capacity
        return self.model.room() <= 0 and (full_of_records or not dropping)

    def admitted(self, steps, submission):
        if self.check_submission(submission):
            self.bodies[submission.task_id] = steps

    async def body(self, steps, token):
        while (step := await steps.get()) in ("park", "resume"):
            if step == "park":
                assert token.release()
            else:
                await token.reclaim()
        if step == "fail":
            raise RuntimeError("no")

    @rule()
    def submit(self):
        async def step():
            steps = asyncio.Queue()
            work = partial(self.body, steps)
            self.admitted(steps, self.executor.submit(work, self.on_completion, parks=True))

        self.loop.run_until_complete(step())
        self.settle()

    @precondition(lambda self: self.model.overflow != "fail_fast")
    @rule()
    def submit_with_patience(self):
        async def step():
            steps = asyncio.Queue()
            work = partial(self.body, steps)
            submitting = self.executor.submit_async(work, self.on_completion, parks=True)
            return steps, asyncio.ensure_future(submitting)

        self.patient.append(self.loop.run_until_complete(step()))
        self.settle()

    @precondition(lambda self: self.patient)
    @rule(data=st.data())
    def lose_patience(self, data):
        _, waiting = self.patient.pop(data.draw(st.integers(0, len(self.patient) - 1)))
        waiting.cancel()
        self.settle()
        assert waiting.cancelled()

    def tell(self, task, step):
        self.bodies[task].put_nowait(step)
        self.settle()

    def parked_at_rest(self):
        return [task for task in self.model.parked if task not in self.model.line]

    @precondition(lambda self: self.model.active)
    @rule(data=st.data())
    def park(self, data):
        task = data.draw(st.sampled_from(self.model.active))
        self.model.park(task)
        self.tell(task, "park")

    @precondition(lambda self: self.parked_at_rest())
    @rule(data=st.data())
    def resume(self, data):
        task = data.draw(st.sampled_from(self.parked_at_rest()))
        self.model.resume(task)
        self.tell(task, "resume")

    @precondition(lambda self: self.model.active or self.parked_at_rest())
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data, ok):
        task = data.draw(st.sampled_from(self.model.active + self.parked_at_rest()))
        self.model.end(task, ok=ok)
        self.tell(task, "return" if ok else "fail")

    @precondition(lambda self: self.model.pending + self.model.active + self.model.parked)
    @rule(data=st.data())
    def cancel(self, data):
        everyone = self.model.pending + self.model.active + self.model.parked
        task = data.draw(st.sampled_from(everyone))
        self.model.cancel(task)
        assert self.executor.cancel(task)
        self.settle()
        assert not self.executor.cancel(task)

    @rule(slots=st.integers(1, 4))
    def resize(self, slots):
        if len(self.model.active) <= slots:  # shrinking below is tested by itself
            self.model.concurrency = slots
            self.executor.pool.resize(slots)
            self.model.grant()
            self.settle()

    @rule()
    def shut_down_at_once(self):
        self.model.closing = True
        for task in self.model.pending + self.model.active + self.model.parked:
            self.model._take_off(task)
            self.model.cancelled.append(task)
        self.model.pending.clear()
        self.loop.run_until_complete(self.executor.shutdown(timeout=0))
        self.settle()

    def teardown(self):
        if self.executor is None:
            return
        self.loop.run_until_complete(self.executor.shutdown(timeout=0))
        self.loop.run_until_complete(settled())
        assert self.executor.metrics().parked_count == self.executor.metrics().active_count == 0
        assert self.executor.pool.free == self.executor.pool.size
        self.loop.close()


TestDeterministic = DeterministicMachine.TestCase
TestThreaded = ThreadedMachine.TestCase
TestAsync = AsyncMachine.TestCase
TestProcess = ProcessMachine.TestCase

TestDeterministic.settings = settings(max_examples=150, stateful_step_count=40)
TestThreaded.settings = settings(max_examples=150, stateful_step_count=30)
TestAsync.settings = settings(max_examples=150, stateful_step_count=40)
TestProcess.settings = settings(max_examples=15, stateful_step_count=15)
