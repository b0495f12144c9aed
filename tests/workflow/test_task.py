import asyncio
import functools
import inspect
import pickle
from datetime import timedelta
from typing import Any

import pytest

import layby
from layby import BlockingHandle, TaskHandle
from layby.errors import WorkflowError
from layby.workflow.retry import RetryPolicy
from layby.workflow.task import task
from tests.workflow import work


def plain(context):
    return "called"


async def waits(context, handle):
    return handle


def takes_task_handle(context, task_handle=None): ...
def takes_keyword_handle(context, *, handle): ...
def takes_default_then_handle(context, limit=3, handle=None): ...
def takes_default(context, limit=3): ...
def takes_anything(*args, **kwargs): ...


def test_a_bare_task_is_still_the_function():
    """It keeps the name, the docs and the signature."""
    decorated = task(plain)
    assert decorated({}) == "called"
    assert (decorated.id, decorated.__name__, decorated.__wrapped__) == ("plain", "plain", plain)
    assert list(inspect.signature(decorated).parameters) == ["context"]
    assert decorated.dependencies == ()
    assert decorated.retry == RetryPolicy(max_attempts=1)
    assert (decorated.timeout, decorated.rule, decorated.process) == (None, "all_success", False)


def test_options():
    first = task(plain)
    decorated = task(
        id="second", dependencies=[first, "other"], retries=3, timeout=timedelta(minutes=1)
    )(waits)
    assert decorated.dependencies == ("plain", "other")
    assert decorated.retry.max_attempts == 4
    assert decorated.timeout == 60.0
    assert decorated.is_async
    assert task(retry=RetryPolicy(max_attempts=2))(plain).retry.max_attempts == 2
    assert repr(decorated) == "<task 'second'>"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, None),
        (waits, "handle"),
        (takes_task_handle, "task_handle"),
        (takes_keyword_handle, "handle"),
        (takes_default_then_handle, "handle"),
        (takes_default, None),
        (takes_anything, None),
    ],
)
def test_who_gets_a_handle(function, name):
    decorated = task(function)
    assert decorated.handle_name == name
    assert decorated.requires_handle == (name is not None)


def test_called_as_a_worker_calls_it():
    assert asyncio.run(task(waits).call({}, "the handle")) == "the handle"
    assert task(plain).call({}, "the handle") == "called"


def test_what_is_async():
    class Callable:
        async def __call__(self, context): ...

    assert task(id="object")(Callable()).is_async
    assert task(id="part")(functools.partial(waits, handle=None)).is_async
    assert not task(plain).is_async


def test_closures_are_fine():
    tasks = [task(id=f"t{n}")(lambda context, n=n: n) for n in range(3)]
    assert [each.call({}) for each in tasks] == [0, 1, 2]


def test_a_process_task_is_sent_by_name():
    """Pickle finds the decorated object under the function's own name."""
    assert pickle.loads(pickle.dumps(work.count)) is work.count


def nested():
    def inner(context): ...

    return inner


class Group:
    def method(self, context): ...


async def computes(context): ...


def generates(context):
    yield


async def generates_async(context):
    yield


def nothing(): ...
def only_keyword(*, context): ...
def other(context, token): ...
def both(context, handle, task_handle): ...
def positional(context, handle, /): ...


@pytest.mark.parametrize(
    ("options", "function", "message"),
    [
        ({}, 7, "@task needs a function, got 7"),
        ({}, Group, "@task needs a function"),
        ({}, task(plain), "task 'plain' is decorated twice"),
        ({}, generates, "generates yields"),
        ({}, generates_async, "generates_async yields"),
        ({}, lambda context: 1, r"write @task\(id=\.\.\.\)"),
        ({}, functools.partial(plain), r"write @task\(id=\.\.\.\)"),
        ({}, nothing, r"task 'nothing' takes no context: write def nothing\(context\)"),
        ({}, only_keyword, "takes no context"),
        ({}, max, r"cannot tell which parameters .* takes; wrap it in a def"),
        ({}, other, "parameter 'token' that gets no value: name it handle"),
        ({}, both, "both handle and task_handle"),
        ({}, positional, "remove the '/'"),
        ({"id": "a:b"}, plain, "task id 'a:b' must not contain ':': use 'a-b'"),
        ({"id": "a/b"}, plain, "must not contain '/'"),
        ({"id": ""}, plain, "must not be empty"),
        ({"id": "a\0b"}, plain, "control characters"),
        ({"id": "x" * 201}, plain, "at most 200 bytes"),
        ({"id": 7}, plain, "must be a string, not int"),
        ({"dependencies": "submit"}, plain, r"must be a list of ids or tasks: write \['submit'\]"),
        ({"dependencies": task(plain)}, plain, "must be a list of ids or tasks"),
        ({"dependencies": None}, plain, "must be a list of ids or tasks"),
        ({"dependencies": [waits]}, plain, "which is not a task: decorate it with @task"),
        ({"dependencies": [7]}, plain, "dependency of task 'plain': 7 must be a string"),
        ({"dependencies": ["a", "b", "a"]}, plain, "lists dependency 'a' twice"),
        ({"retries": 1, "retry": RetryPolicy()}, plain, "both retries and retry"),
        ({"retries": -1}, plain, "retries must be a whole number of at least 0, got -1"),
        ({"retries": True}, plain, "retries must be"),
        ({"retries": 1.5}, plain, "retries must be"),
        ({"retry": 3}, plain, "for a number of retries write retries="),
        ({"timeout": 0}, plain, "timeout of task 'plain' must be above 0 seconds, got 0"),
        ({"timeout": -1}, plain, "must be above 0"),
        ({"timeout": timedelta(0)}, plain, "must be above 0"),
        ({"timeout": float("nan")}, plain, "number of seconds, got nan"),
        ({"timeout": "1 h"}, plain, "seconds or a timedelta, got '1 h'"),
        ({"timeout": True}, plain, "seconds or a timedelta"),
        ({"rule": "all_sucess"}, plain, r"did you mean 'all_success'\? \(there are all_s"),
        ({"rule": 7}, plain, "rule must be a name or a function"),
        ({"rule": waits}, plain, "rule waits is async"),
        ({"process": True}, nested(), "make it a def at the top of a module"),
        ({"process": True, "id": "x"}, lambda context: 1, "make it a def at the top of a module"),
        ({"process": True}, Group.method, "make it a def at the top of a module"),
        ({"process": True}, computes, "is async: process=True needs a plain def"),
        ({"process": True}, takes_keyword_handle, "asks for a handle"),
        ({"on_success": "x"}, plain, r"'x' is not a function on_success\(task_id, context\)"),
        (
            {"on_success": lambda context: 1},
            plain,
            r"cannot be called as on_success\(task_id, context\)",
        ),
        ({"on_failure": lambda a, b: 1}, plain, r"as on_failure\(task_id, error, context\)"),
    ],
)
def test_bad_tasks_are_refused_with_the_remedy(options, function, message):
    with pytest.raises(WorkflowError, match=message):
        task(**options)(function)


def test_options_that_do_not_exist_are_not_taken_in_silence():
    options: Any = {"on_sucess": print}
    with pytest.raises(TypeError, match="on_sucess"):
        task(**options)


def test_a_rule_is_a_name_or_a_function():
    def rule(outcomes, context): ...

    assert task(rule=rule)(plain).rule is rule
    assert task(rule="all_done")(plain).rule == "all_done"


async def waits_in_a_thread(context, handle: BlockingHandle): ...
async def waits_in_a_thread_by_name(context, task_handle: "layby.BlockingHandle"): ...
def waits_on_the_loop(context, handle: TaskHandle): ...
def waits_on_the_loop_by_name(context, handle: "TaskHandle"): ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (waits_in_a_thread, "is an async def and gets a TaskHandle.*write handle: TaskHandle"),
        (waits_in_a_thread_by_name, "'task_handle' is declared as a BlockingHandle"),
        (waits_on_the_loop, "is a plain def and gets a BlockingHandle.*handle: BlockingHandle"),
        (waits_on_the_loop_by_name, "'handle' is declared as a TaskHandle"),
    ],
)
def test_a_handle_of_the_other_form_is_refused(function, why):
    """It would fail at its first wait, far from the declaration."""
    with pytest.raises(WorkflowError, match=why):
        task(function)


async def takes_its_handle(context, handle: TaskHandle): ...
def takes_its_blocking_handle(context, handle: "BlockingHandle"): ...


@pytest.mark.parametrize("function", [takes_its_handle, takes_its_blocking_handle])
def test_a_handle_of_its_own_form_may_be_declared(function):
    assert task(function).handle_name == "handle"


def test_a_task_that_is_called_has_no_limit():
    """limits.md promises that a limit counts for every body: it would not for calls."""
    with pytest.raises(WorkflowError, match="'charge' has a limit, which does not count for calls"):

        @task(rpc="charge", limit="api")
        async def charge(context: Any) -> None: ...
