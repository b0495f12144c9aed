"""Tasks that serve calls: what they are given, what the caller gets, and under which name."""

from typing import Any

import pytest

from layby import Context, ContextError, UsageError, WorkflowError, task
from layby.core.model import Promise, Task
from layby.core.replies import Claim
from layby.wire.call_format import Call
from layby.wire.json_values import text_of
from layby.workflow.child_result import ChildResult
from layby.workflow.functions import (
    Functions,
    LoadedFunction,
    answer_of,
    context_of,
)
from layby.workflow.workflow import AnyTask


@pytest.mark.parametrize(
    ("args", "named", "context"),
    [
        ([{"order": 7}], {}, {"order": 7}),
        ([], {}, {}),
        ([], {"order": 7}, {"order": 7}),
        ([{"order": 7, "n": 1}], {"order": 8}, {"order": 8, "n": 1}),
        ([7], {}, {"args": [7]}),
        ([[7]], {}, {"args": [[7]]}),
        ([None], {}, {"args": [None]}),
        ([{"a": 1}, 2], {}, {"args": [{"a": 1}, 2]}),
        ([7], {"order": 8}, {"args": [7], "order": 8}),
    ],
)
def test_arguments_are_the_context(args: list[Any], named: dict[str, Any], context: dict[str, Any]):
    """One object is the context itself, as names are; anything else is listed there."""
    assert context_of(Call("f", tuple(args), named)) == context


def test_what_is_returned_is_the_answer():
    """As it is: a dict is not merged into what the caller had given."""
    given = context_of(Call("f", ({"order": 7},)))
    for answer in ({"receipt": 1}, {}, [], 0, False, "", "Hello!"):
        assert answer_of(answer, given) == answer


def test_who_returns_nothing_answers_with_what_it_has_set():
    """Not with what it was given, and with null when it has set nothing."""
    context = context_of(Call("f", ({"order": 7, "lines": [1], "gone": 1},)))
    assert answer_of(None, context) is None
    context["receipt"] = "R7"
    context["order"] = 7
    context["lines"].append(2)
    del context["gone"]
    assert answer_of(None, context) == {"receipt": "R7", "lines": [1, 2]}


def test_who_returns_its_context_answers_with_all_of_it():
    context = context_of(Call("f", ({"order": 7},)))
    context["receipt"] = "R7"
    answer = answer_of(context, context)
    assert answer == {"order": 7, "receipt": "R7"}
    assert not isinstance(answer, Context)


def test_the_same_rules_hold_in_a_process_of_its_own():
    """The child works out the answer: only that comes back."""

    def sets(context):
        context["n"] = context["n"] + 1

    def returns(context):
        return (each for each in "ab")

    idle = task(id="idle")(lambda context: None)
    done = LoadedFunction.in_process(task(sets), Context({"n": 1, "m": 2}))
    assert done == ChildResult(b'{"n":2}')
    assert LoadedFunction.in_process(idle, Context({"n": 1})) == ChildResult(b"null")
    refused = LoadedFunction.in_process(task(rpc="f")(returns), Context()).refused
    assert refused.startswith("the result of 'f' is of type generator")


def serving(name: str, answer: object = None) -> AnyTask:
    @task(rpc=name)
    async def serves(context):
        return answer

    return serves


def test_which_calls_are_served():
    """By name, and of the first version: that is what callers mean by 1, and by 0, the latest."""
    functions = Functions(lambda: 0.5)
    assert functions.register(serving("pay"))
    served = {version for version in range(4) if functions.serves(Call("pay", version=version))}
    assert served == {0, 1}
    assert not functions.serves(Call("Pay"))
    assert not functions.serves(None)
    assert functions.names == {"pay"}


def test_one_name_for_two_codes():
    """Which of them a caller means nobody could say; the same code built twice is fine."""
    functions = Functions(lambda: 0.5)
    assert functions.register(serving("pay", 1))
    assert not functions.register(serving("pay", 1))
    assert not functions.register(task(id="idle")(lambda context: None))
    with pytest.raises(UsageError, match="'pay' is already served by task 'serves'"):
        functions.register(serving("pay", 2))


@pytest.mark.parametrize("name", ["", "  ", 7, True, "a\nb", ["a"]])
def test_what_is_no_name_of_a_function(name: Any):
    with pytest.raises(WorkflowError, match="rpc of task 'works'"):

        @task(rpc=name)
        async def works(context): ...


def test_a_result_without_a_json_form_names_the_function():
    """It is a failure of the call."""
    functions = Functions(lambda: 0.5)
    functions.register(serving("pay"))
    promise = Promise("c", "c", text_of(Call("pay").to_value()), "{}", 10, 0)
    job = functions.load(Claim(Task("c", "poll://any@default", version=1), promise))
    with pytest.raises(ContextError, match="the result of 'pay'"):
        job.completed({1, 2})
