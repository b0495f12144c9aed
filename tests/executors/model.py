"""What an executor should count, said in lists: a second hand, written from the study's tables.

It knows no lock, no thread and no loop. `line` is who waits for a slot, new and resumed alike.
"""

from layby.executors import TaskExecutorMetrics

REFUSAL = {"fail_fast": "task executor capacity exceeded"}


class ModelExecutor:
    def __init__(self, *, capacity, overflow, concurrency, counts_running=True, keeps=True):
        self.capacity = capacity
        self.overflow = overflow
        self.concurrency = concurrency
        self.counts_running = counts_running
        self.keeps = keeps
        self.closing = False
        self.line, self.pending, self.active, self.parked = [], [], [], []
        self.undrained, self.completed, self.failed, self.cancelled = [], [], [], []
        self.submitted = self.rejected = self.tokens_seen = 0
        self.max_inflight = self.max_outstanding = 0

    def load(self):
        running = len(self.active) if self.counts_running else 0
        return len(self.pending) + running, len(self.undrained)

    def room(self):
        return self.capacity - sum(self.load())

    def submit(self):
        """Return the id, or the reason."""
        inflight, undrained = self.load()
        if self.closing:
            return self._refuse("task executor is shutting down")
        if inflight + undrained >= self.capacity:
            if undrained >= self.capacity:
                return self._refuse("task executor completed backlog full")
            if self.overflow not in ("drop_oldest", "overwrite") or not self.pending:
                return self._refuse(REFUSAL.get(self.overflow, "task executor queue full"))
            self._cancel_queued(self.pending[0])
        self.submitted += 1
        self.pending.append(self.submitted)
        self.line.append(self.submitted)
        self.note()
        self.grant()
        return self.submitted

    def _refuse(self, reason):
        self.rejected += 1
        return reason

    def grant(self):
        while self.concurrency and self.line and len(self.active) < self.concurrency:
            task = self.line.pop(0)
            (self.pending if task in self.pending else self.parked).remove(task)
            self.active.append(task)
            self.note()

    def note(self):
        inflight, undrained = self.load()
        self.max_inflight = max(self.max_inflight, inflight)
        self.max_outstanding = max(self.max_outstanding, inflight + undrained)

    def end(self, task, *, ok):
        self._take_off(task)
        (self.completed if ok else self.failed).append(task)
        if self.keeps:
            self.undrained.append(task)
        self.note()
        self.grant()

    def park(self, task):
        self.active.remove(task)
        self.parked.append(task)
        self.grant()

    def resume(self, task):
        self.line.append(task)
        self.grant()

    def cancel(self, task):
        if task in self.pending:
            self._cancel_queued(task)
        else:
            self._take_off(task)
            self.cancelled.append(task)
        self.grant()

    def cancel_pending(self):
        count = len(self.pending)
        for task in list(self.pending):
            self._cancel_queued(task)
        return count

    def drain(self, max_tasks):
        count = max_tasks or len(self.undrained)
        drained, self.undrained = self.undrained[:count], self.undrained[count:]
        return drained

    def _cancel_queued(self, task):
        self.pending.remove(task)
        self.line.remove(task)
        self.cancelled.append(task)

    def _take_off(self, task):
        for place in (self.active, self.parked, self.line):
            if task in place:
                place.remove(task)

    def metrics(self):
        return TaskExecutorMetrics(
            submitted_count=self.submitted,
            queued_count=self.submitted,
            active_count=len(self.active),
            completed_count=len(self.completed),
            cancelled_count=len(self.cancelled),
            rejected_count=self.rejected,
            failed_count=len(self.failed),
            cancellation_requested_count=self.tokens_seen,
            cancellation_observed_count=self.tokens_seen,
            max_inflight_count=self.max_inflight,
            max_outstanding_count=self.max_outstanding,
            queue_depth=len(self.pending),
            completed_backlog_depth=len(self.undrained),
            parked_count=len(self.parked),
        )
