"""The handle of plain `def` tasks says what the one of `async def` tasks says."""

import inspect

import pytest

import layby
from layby import BlockingHandle, TaskHandle
from layby.worker.approval_requests import Approval, BlockingApproval
from layby.worker.blocking_handle import BlockingToken
from layby.worker.handle import Token

ONLY_ASYNC = {
    "check_open",
    "heeds_stop",
    "is_leased",
    "keep",
    "link",
    "may_work",
    "numbered",
    "open_approval",
    "recalled",
    "settled",
    "thread_waits",
    "wait_for_approval",
    "withdraw_approval",
}
"""What the worker, the blocking handle and the tokens of a handle use themselves."""
ONLY_BLOCKING = {"call", "interrupt", "run", "wait"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_name_that_users_annotate():
    """`def body(context: Context, handle: BlockingHandle)`."""
    assert layby.BlockingHandle is BlockingHandle


def test_it_has_every_call():
    """A new call of one must be decided for the other."""
    assert public(TaskHandle) - ONLY_ASYNC == public(BlockingHandle) - ONLY_BLOCKING


@pytest.mark.parametrize("name", sorted(public(TaskHandle) - ONLY_ASYNC))
def test_the_same_parameters_with_the_same_types(name):
    """Only that one is awaited and the other blocks."""
    one, other = getattr(TaskHandle, name), getattr(BlockingHandle, name)
    if not isinstance(one, property):
        parameters = inspect.signature(one).parameters
        assert dict(inspect.signature(other).parameters) == dict(parameters)


def test_tokens_likewise():
    """What `handle.promise` returns."""
    assert inspect.signature(BlockingToken.wait) == inspect.signature(Token.wait)
    assert public(BlockingToken) - {"id"} == public(Token) - {"id"}
    assert public(BlockingApproval) == public(Approval)
