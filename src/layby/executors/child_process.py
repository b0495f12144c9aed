"""Owns both sides of one child process: it runs one task at a time, and is sure to end.

The child ends when its pipe is closed, when it is killed, or when its parent is gone, even in the
middle of a task: a thread of the child waits for the parent to end and then exits the process.
"""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, Final

from layby.executors.executor_config import StartMethod
from layby.executors.task_records import text_of

CAN_TELL: Final = hasattr(faulthandler, "register")
"""Not on Windows."""
STACK_WITHIN_S: Final = 0.2
"""Meanwhile nobody can cancel another task; only a child that is stopped or deaf takes so long."""
STACK_PAUSE_S: Final = 0.02
"""It is written in parts, and nothing says which is the last."""
Answer = tuple[bool, Any, str]
"""ok, payload, error: what a child sends back for each task."""


class ChildDied(Exception):
    """The process ended before it answered."""


class ChildProcess:
    """The parent's side. One thread runs tasks; any thread may call `kill`."""

    def __init__(self, start_method: StartMethod) -> None:
        context = _context(start_method)
        self._connection, child_end = context.Pipe()
        self._stacks, stacks_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(child_end, stacks_end), daemon=True)
        self._process.start()
        child_end.close()  # the child has its own; with ours open we would not see it die
        stacks_end.close()

    def wait_until_ready(self) -> None:
        """Starting an interpreter takes time, which should not count against the first task."""
        self._receive(None)

    def run(self, work: Callable[[], Any], timeout: float | None) -> Answer:
        """Raise `TimeoutError` if no answer came in time; the child is still working then."""
        request = _pickled(work, "submit a module-level function, or a functools.partial of one")
        try:
            self._connection.send_bytes(request)
        except ConnectionError as error:
            raise self._died() from error
        return self._receive(timeout)

    def stack(self) -> str:
        """Where its task stands, as `faulthandler` writes it; empty if it does not say so soon."""
        pid, written = self._process.pid, b""
        if not CAN_TELL or pid is None:
            return ""
        try:
            os.kill(pid, signal.SIGUSR2)
            within = STACK_WITHIN_S
            while self._stacks.poll(within) and (part := os.read(self._stacks.fileno(), 65536)):
                written += part
                within = STACK_PAUSE_S
        except OSError:  # it has ended
            return ""
        return written.decode(errors="replace")

    def kill(self) -> None:
        self._process.kill()

    def close(self, timeout: float = 1.0) -> None:
        """Let an idle child exit, and kill one that does not."""
        self._connection.close()
        self._stacks.close()
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _receive(self, timeout: float | None) -> Answer:
        try:
            if not self._connection.poll(timeout):
                raise TimeoutError
            return self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error

    def _died(self) -> ChildDied:
        self._process.join()
        return ChildDied(f"worker process {_how_it_ended(self._process.exitcode)}")


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0 and -exit_code in set(signal.Signals):
        name = signal.Signals(-exit_code).name
        of_memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name}{of_memory}"
    return f"ended with exit code {exit_code}"


def _context(start_method: StartMethod) -> SpawnContext | ForkServerContext:
    if start_method == "spawn":
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


def _serve(connection: Connection, stacks: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    if CAN_TELL:  # works while C code runs and holds the interpreter's lock
        faulthandler.register(signal.SIGUSR2, file=stacks.fileno(), all_threads=False)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection.send((True, None, ""))  # ready
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        connection.send_bytes(_answer(request))


def _pickled(thing: object, remedy: str) -> bytes:
    try:
        return pickle.dumps(thing)
    except Exception as error:
        raise TypeError(f"cannot be pickled for another process: {error}; {remedy}") from error


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _answer(request: bytes) -> bytes:
    try:
        work = pickle.loads(request)  # noqa: S301 - from our own parent, through a private pipe
        return _pickled((True, work(), ""), "return plain data")
    except BaseException as error:  # noqa: BLE001 - work must not end its worker
        return pickle.dumps((False, None, text_of(error)))
