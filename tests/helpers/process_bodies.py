"""Bodies for processes: found by name in the child."""

import os
import signal
from pathlib import Path
from threading import Event

from layby import task


@task(process=True)
def doubles(context):
    context["doubled"] = context["n"] * 2
    context["pid"] = os.getpid()


@task(process=True, rpc="halve")
def halves(context):
    context["n"] = context["n"] // 2


@task(process=True, timeout=2)
def never_ends(context):
    Path(context["path"]).write_text(str(os.getpid()))
    Event().wait(600)


@task(process=True, timeout=2)
def deaf(context):
    """It has a use of its own for the signal that asks where it is."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    Event().wait(600)


@task(process=True)
def endless(context):
    Path(context["path"]).write_text(str(os.getpid()))
    Event().wait(600)


@task(process=True, retries=1)
def raises(context):
    raise ValueError("in the child")


TOLD: list[tuple[str, dict[str, int]]] = []


def tell(task_id, context):
    TOLD.append((task_id, dict(context)))


@task(process=True, on_success=tell)
def tells(context):
    context["doubled"] = context["n"] * 2


@task(process=True)
def returns_list(context):
    return [1, (2,)]


@task(process=True, dependencies=[returns_list])
def reads_result(context):
    context["read"] = context.result("returns_list")


@task(process=True, retries=2)
def returns_lambda(context):
    return lambda: None


@task(rule="finally", timeout=60, process=True)
def write_ending(context):
    """How its run ended, into a file."""
    ending = context.ending
    Path(context["file"]).write_text(f"{ending.state} {dict(ending.failed)}")


@task(process=True, retries=2)
def sets_a_set(context):
    context["all"] = {1, 2}
