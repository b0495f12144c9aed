"""Evaluates plain conditions in threads, so that one that hangs holds up only its own task.

Conditions that are due together go to one thread, the quick thread, as one batch; the answers come
back in one callback of the loop. The loop checks every 50 ms: a condition that takes longer keeps
that thread to itself, and the rest of the batch goes to another. From then on that condition, and
new ones with the same code, get a thread each. Threads are bounded: half of them may be dedicated
to conditions known to be slow, which then wait for each other; the rest are kept for new slow ones.

Everything is decided on the loop. Threads only evaluate what they are given, and share two things
with it: deques, whose ends are atomic, and `asked`, one tuple.

Under virtual time the loop waits a moment for the answers instead of going on: a quick condition is
as good as evaluated on the loop, and a test sees the same order every time.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from layby.worker.condition_poll import Question, code_of, name_of, truth_of
from layby.worker.real_work import RealWork, current_work
from layby.worker.thread_call import set_loop_of_thread

logger = logging.getLogger(__name__)

SLICE_S = 0.005
"""Real seconds of evaluating before others have a turn."""
MAX_ANSWERS_PER_TURN = 500
"""Answers handled before the loop goes on: what they set off takes time as well."""
SLOW_S = 0.05
"""Real seconds after which a condition keeps its thread to itself."""
VIRTUAL_SLOW_S = 1.0
"""The same under virtual time, where the loop waits: a busy machine must not change the order."""
QUICK_AGAIN = 8
"""After this many quick answers in a row, this code no longer counts as slow."""
IDLE_S = 10.0
"""Real seconds after which an idle thread ends."""

Answer = tuple[Question, bool | Awaitable[Any], BaseException | None, float]
"""What was asked, its answer, or what it raised, and how long that took.

A quick yes or no is stored in the question itself: many tuples would trigger the garbage collector.
"""
Heard = Callable[[Question, bool | Awaitable[Any], BaseException | None], None]


class ConditionThreads:
    """Belongs to one loop. `heard` is called there with each answer, `late` when one is slow."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heard: Heard,
        late: Callable[[Question], None],
        max_threads: int,
    ) -> None:
        self._loop = loop
        self._heard = heard
        self._late = late
        self._max_threads = max_threads
        self._context = copy_context()
        self._work = current_work.get()
        self._slow_after = SLOW_S if self._work is None else VIRTUAL_SLOW_S
        self._answer_queue = _AnswerQueue(loop, self._answers_came, self._context)
        self._batch: deque[Question] = deque()
        self._quick: _ConditionThread | None = None
        self._idle: list[_ConditionThread] = []
        self._dedicated: dict[Question, _ConditionThread] = {}
        self._slow_queue: dict[Question, None] = {}
        self._asked = 0
        """Questions asked and not answered."""
        self._slow: dict[object, int] = {}
        """Codes whose questions get dedicated threads; how many of those were quick after all."""
        self._logged_codes: set[object] = set()
        self._first_checks: dict[Question, float] = {}
        self._counted: set[Question] = set()
        self._is_handing_over = False
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._warned_of: set[str] = set()

    # --- asking --------------------------------------------------------------------------

    def ask(self, question: Question) -> None:
        """It is evaluated after the next `hand_over`, with all others of this turn."""
        self._asked += 1
        self._enqueue(question)

    def ask_first(self, question: Question) -> None:
        """The same for a body that waits: `late` is called when the answer takes long."""
        self.ask(question)
        self._first_checks[question] = perf_counter()
        if self._work is not None:
            self.hand_over()
        elif not self._is_handing_over:
            self._is_handing_over = True
            self._loop.call_soon(self.hand_over, context=self._context)

    def hand_over(self) -> None:
        self._is_handing_over = False
        if self._work is not None:
            self._handle_at_once(self._work)
            return
        self._hand_batch_over()
        if self._watch is None and self._needs_watching():
            self._arm_watch()

    def forget(self, question: Question) -> None:
        """Nobody waits for its answer any more. A thread that has begun goes on."""
        self._first_checks.pop(question, None)
        self._uncount(question)
        if question in self._slow_queue:
            del self._slow_queue[question]
            self._asked -= 1

    def close(self) -> None:
        """Let the threads end; one that hangs ends when its condition does."""
        if self._watch is not None:
            self._watch.cancel()
        threads = [*self._idle, *self._dedicated.values()]
        for thread in threads if self._quick is None else [*threads, self._quick]:
            thread.end()

    def _enqueue(self, question: Question) -> None:
        if self._is_slow(question):
            self._slow_queue[question] = None
        else:
            self._batch.append(question)

    def _hand_batch_over(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, deque()
            self._give_quick(batch)
        if self._slow_queue:
            self._serve_slow_queue()

    def _is_slow(self, question: Question) -> bool:
        """Its own answers count more than those of others with the same code."""
        if question.lane is not None or not self._slow:
            return question.lane == "own"
        return code_of(question.condition) in self._slow

    # --- threads -------------------------------------------------------------------------

    def _give_quick(self, batch: deque[Question]) -> None:
        if self._quick is None or not self._quick.give(batch):
            self._quick = self._begin(batch)
            if self._quick is None:
                self._batch.extend(batch)  # for the next check

    def _serve_slow_queue(self) -> None:
        """Dedicate a thread to each, while there are any."""
        while self._slow_queue and len(self._dedicated) < self._max_threads // 2:
            question = next(iter(self._slow_queue))
            del self._slow_queue[question]
            thread = self._begin(deque((question,))) if self._is_slow(question) else None
            if thread is None:
                self._give_quick(deque((question,)))
            else:
                self._dedicated[question] = thread
        if self._slow_queue:
            self._warn_full("slow conditions wait for each other")
        else:
            self._warned_of.clear()

    def _warn_full(self, consequence: str) -> None:
        """Once, until there is room for all again."""
        if consequence not in self._warned_of:
            self._warned_of.add(consequence)
            logger.warning(
                "%d conditions do not answer and hold a thread each (%s): %s",
                len(self._dedicated),
                ", ".join(sorted({name_of(each.condition) for each in self._dedicated})),
                consequence,
            )

    def _begin(self, batch: deque[Question]) -> "_ConditionThread | None":
        """A thread that evaluates these; None when the system refuses a new one."""
        while self._idle:
            thread = self._idle.pop()
            if thread.give(batch):
                return thread
        try:
            return _ConditionThread(self._answer_queue, batch)
        except RuntimeError as error:
            self._warn_full(f"{error}, conditions wait for each other")
            return None

    # --- watching the threads ------------------------------------------------------------

    def _needs_watching(self) -> bool:
        return bool(self._first_checks) or self._asked > len(self._dedicated) + len(
            self._slow_queue
        )

    def _arm_watch(self, pause: float = SLOW_S) -> None:
        self._watch_at = self._loop.time() + pause
        self._watch = self._loop.call_at(self._watch_at, self._check_threads, context=self._context)

    def _check_threads(self) -> None:
        """If the loop itself is late, the threads may be too: check again before judging them."""
        self._watch = None
        self._handle_answers()
        self._hand_batch_over()
        if self._loop.time() - self._watch_at < SLOW_S:
            self._find_slow()
        if self._needs_watching():
            self._arm_watch(self._next_watch_in())

    def _next_watch_in(self) -> float:
        if self._has_no_spare_thread():
            return SLOW_S
        asked = None if self._quick is None else self._quick.asked
        age = 0.0 if asked is None else perf_counter() - asked[1]
        return max(SLOW_S - age, SLOW_S / 10)

    def _find_slow(self) -> bool:
        """Dedicate threads to questions that take too long; whether there were any."""
        limit = perf_counter() - self._slow_after
        threads = self._idle if self._quick is None else [*self._idle, self._quick]
        lost = [
            (thread, asked) for thread in threads if (asked := thread.asked) and asked[1] < limit
        ]
        for thread, (question, begun) in lost:
            self._dedicate(thread, question, perf_counter() - begun)
        for question in [each for each, since in self._first_checks.items() if since < limit]:
            del self._first_checks[question]
            self._late(question)
        return bool(lost)

    def _dedicate(self, thread: "_ConditionThread", question: Question, took: float) -> None:
        self._mark_slow(question, took)
        if self._has_no_spare_thread():
            self._warn_full("all conditions wait")
            return
        self._dedicated[question] = thread
        if thread is self._quick:
            self._quick = None
        elif thread in self._idle:
            self._idle.remove(thread)
        for each in thread.take_rest():
            self._enqueue(each)
        self._hand_batch_over()

    def _mark_slow(self, question: Question, took: float) -> None:
        """Logged once for all conditions with the same code."""
        question.lane = "own"
        code = code_of(question.condition)
        self._slow[code] = 0
        if code not in self._logged_codes:
            self._logged_codes.add(code)
            logger.warning(
                "condition %s%s did not answer within %.0f ms; from now on it is evaluated in a "
                "thread of its own (make it async, or quicker)",
                name_of(question.condition),
                "" if question.task is None else f" of {question.task}",
                took * 1000,
            )

    def _was_quick(self, question: Question) -> None:
        """It had a dedicated thread because of others with its code, perhaps exceptions."""
        code = code_of(question.condition)
        if code in self._slow:
            self._slow[code] += 1
            if self._slow[code] >= QUICK_AGAIN:
                del self._slow[code]

    # --- answers -------------------------------------------------------------------------

    def _answers_came(self) -> None:
        self._answer_queue.is_notified = False
        self._handle_answers()

    def _handle_answers(self) -> None:
        """Handle the answers there are; if there are many, the rest in the next turn."""
        answers = self._answer_queue.answers
        try:
            for _ in range(len(answers) if self._work else min(len(answers), MAX_ANSWERS_PER_TURN)):
                answer = answers.popleft()
                if isinstance(answer, tuple):
                    self._handle_answer(*answer)
                else:
                    self._handle_answer(answer, answer.quick_answer, None, 0.0)
        finally:
            if answers:
                self._answer_queue.notify()

    def _handle_answer(
        self,
        question: Question,
        answer: bool | Awaitable[Any],  # noqa: FBT001
        error: BaseException | None,
        took: float,
    ) -> None:
        self._asked -= 1
        if self._first_checks:
            self._first_checks.pop(question, None)
        if self._dedicated and (thread := self._dedicated.pop(question, None)) is not None:
            self._thread_returned(thread, question, took)
        elif question.lane is None:
            question.lane = "quick"
        self._heard(question, answer, error)
        self._uncount(question)

    def _thread_returned(self, thread: "_ConditionThread", question: Question, took: float) -> None:
        if took > self._slow_after:
            self._mark_slow(question, took)
        elif question.lane is None:
            question.lane = "quick"
            self._was_quick(question)
        if (asked := thread.asked) is not None:
            self._dedicated[asked[0]] = thread  # it began one more while the rest was taken away
        else:
            self._idle.append(thread)
        self._serve_slow_queue()

    # --- virtual time --------------------------------------------------------------------

    def _handle_at_once(self, work: RealWork) -> None:
        """Time stands still meanwhile; for slow ones the count of real work holds it."""
        self._answer_queue.is_loop_waiting = True
        self._hand_batch_over()
        self._wait_for_quick_ones()
        self._answer_queue.is_loop_waiting = False
        self._handle_answers()
        for question in [*self._dedicated, *self._slow_queue]:
            if not question.is_over and question not in self._counted:
                self._counted.add(question)
                work.begin()
        for question in list(self._first_checks):
            del self._first_checks[question]
            self._late(question)

    def _wait_for_quick_ones(self) -> None:
        while self._asked > len(self._dedicated) + len(self._slow_queue):
            is_heard = self._answer_queue.notified.wait(1.1 * self._slow_after)
            self._answer_queue.notified.clear()
            self._handle_answers()
            if not is_heard and (
                self._batch or (self._find_slow() and self._has_no_spare_thread())
            ):
                return

    def _has_no_spare_thread(self) -> bool:
        """Whether the quick thread has to stay with its question: there is no other thread."""
        return len(self._dedicated) >= self._max_threads - 1

    def _uncount(self, question: Question) -> None:
        if self._counted and self._work is not None and question in self._counted:
            self._counted.discard(question)
            self._work.end()


class _AnswerQueue:
    """Where threads put their answers, and how they wake the loop."""

    __slots__ = (
        "_context",
        "_on_answers",
        "answers",
        "is_loop_waiting",
        "is_notified",
        "loop",
        "notified",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_answers: Callable[[], None], context: Context
    ) -> None:
        self.loop = loop
        self._on_answers = on_answers
        self._context = context
        self.answers: deque[Answer | Question] = deque()
        self.is_notified = False
        self.is_loop_waiting = False
        """Under virtual time: the loop blocks on `notified`."""
        self.notified = threading.Event()

    def notify(self) -> None:
        """Wakes the loop once for many answers: it clears `is_notified` before it handles them."""
        if self.is_loop_waiting:
            self.notified.set()
        elif not self.is_notified:
            self.is_notified = True
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._on_answers, context=self._context)


class _ConditionThread:
    """One thread. It never keeps the process alive, and ends when it has been idle for long."""

    def __init__(self, post: _AnswerQueue, batch: deque[Question]) -> None:
        self.asked: tuple[Question, float] | None = None
        """The question under way and since when; cleared before its answer is put in the queue."""
        self._answer_queue = post
        self._inbox: SimpleQueue[deque[Question] | None] = SimpleQueue()
        self._batch = batch
        self._lock = threading.Lock()
        self._has_ended = False
        self._inbox.put(batch)
        threading.Thread(target=self._run, name="layby-condition", daemon=True).start()

    # --- called on the loop --------------------------------------------------------------

    def give(self, batch: deque[Question]) -> bool:
        with self._lock:
            if not self._has_ended:
                self._inbox.put(batch)
            return not self._has_ended

    def end(self) -> None:
        self._inbox.put(None)

    def take_rest(self) -> list[Question]:
        """Take away all but the question under way. None is asked twice, even if that ends now."""
        rest = _drained(self._batch)
        with suppress(Empty):
            while True:
                rest += _drained(self._inbox.get_nowait() or deque())
        return rest

    # --- in the thread -------------------------------------------------------------------

    def _run(self) -> None:
        set_loop_of_thread(self._answer_queue.loop)
        while (batch := self._next()) is not None:
            self._batch = batch
            self._ask_all(batch)

    def _next(self) -> deque[Question] | None:
        try:
            return self._inbox.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                self._has_ended = self._inbox.empty()
            return None if self._has_ended else self._inbox.get()

    def _ask_all(self, batch: deque[Question]) -> None:
        answers = self._answer_queue.answers
        begun = notified_at = perf_counter()
        while True:
            try:
                question = batch.popleft()
            except IndexError:
                break
            self.asked = (question, begun)
            answer, error = _evaluate(question)
            now = perf_counter()
            self.asked = None
            if error is None and isinstance(answer, bool) and now - begun < SLOW_S:
                question.quick_answer = answer
                answers.append(question)
            else:
                answers.append((question, answer, error, now - begun))
            begun = now
            if now - notified_at > SLICE_S:
                self._answer_queue.notify()
                notified_at = now
        self._answer_queue.notify()


def _drained(batch: deque[Question]) -> list[Question]:
    """One by one: the thread whose batch it is may take from it as well."""
    taken: list[Question] = []
    with suppress(IndexError):
        while True:
            taken.append(batch.popleft())
    return taken


def _evaluate(question: Question) -> tuple[bool | Awaitable[Any], BaseException | None]:
    if question.is_over:
        return False, None
    try:
        return question.context.run(truth_of, question.condition), None
    except StopIteration as error:  # as in a coroutine: a future cannot hold it
        explained = RuntimeError("it raised StopIteration")
        explained.__cause__ = error
        return False, explained
    except BaseException as error:  # noqa: BLE001 - counted and logged, whatever it is
        return False, _with_hint(error)


def _with_hint(error: BaseException) -> BaseException:
    """Add what the author of a condition that needs its loop has to know."""
    if isinstance(error, RuntimeError) and str(error).lower().startswith(
        ("no running event loop", "there is no current event loop")
    ):
        explained = RuntimeError(
            f"{error} (a plain condition is evaluated in a thread: make it async)"
        )
        explained.__cause__ = error
        return explained
    return error
