"""Whether a task runs, once all its dependencies have settled.

The named rules mean what they mean in Airflow. A cancelled dependency counts as failed, and
so does one that was skipped because something before it failed: a failure does not get lost
behind a skipped task.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol, cast

from msgspec import Struct

from layby.errors import RuleError, WorkflowError
from layby.workflow.context import Context
from layby.workflow.names import close_match
from layby.workflow.run_ending import OutcomeStatus

RuleName = Literal["all_success", "all_done", "one_success", "one_failed", "none_failed", "finally"]
RuleFunction = Callable[[Mapping[str, OutcomeStatus], Context], object]
Rule = RuleName | RuleFunction


class Outcome(Protocol):
    """What a rule needs to know of a dependency that has settled."""

    @property
    def status(self) -> OutcomeStatus: ...
    @property
    def blocked(self) -> bool: ...


Outcomes = Mapping[str, Outcome]


class Run(Struct, frozen=True):
    """The task is to run."""


class Skip(Struct, frozen=True):
    """The task is not to run. `blocked`: because something before it failed."""

    reason: str
    blocked: bool = False


FINALLY: Final = "finally"
"""The task cleans up: it runs last, whatever happened, even after the run itself has ended."""

Decision = Run | Skip
RUN: Final = Run()


def check_rule(rule: object) -> Rule:
    if isinstance(rule, str):
        if rule not in NAMED_RULES:
            hint = close_match(rule, tuple(NAMED_RULES))
            known = ", ".join(NAMED_RULES)
            raise WorkflowError(f"unknown rule '{rule}'{hint} (there are {known})")
        return cast("RuleName", rule)
    if not callable(rule):
        raise WorkflowError(f"rule must be a name or a function, got {rule!r}")
    if inspect.iscoroutinefunction(rule):
        raise WorkflowError(f"rule {name_of(rule)} is async; a rule must be a plain function")
    return rule


def decide(rule: Rule, outcomes: Outcomes, context: Context) -> Decision:
    """`outcomes` in the order of the task's dependencies; all of them have settled."""
    if not isinstance(rule, str):
        return _ask(rule, outcomes, context)
    if not outcomes:
        return RUN
    return NAMED_RULES[rule](outcomes)


def name_of(rule: object) -> str:
    return rule if isinstance(rule, str) else getattr(rule, "__qualname__", repr(rule))


def _ask(rule: RuleFunction, outcomes: Outcomes, context: Context) -> Decision:
    try:
        says_run = rule({each: outcome.status for each, outcome in outcomes.items()}, context)
        if inspect.isawaitable(says_run):
            raise TypeError("it returned an awaitable; a rule must not be async")  # noqa: TRY301
        return RUN if says_run else Skip(f"rule {name_of(rule)} said no")
    except Exception as error:
        raise RuleError(f"rule {name_of(rule)} raised {type(error).__name__}: {error}") from error


def _all_success(outcomes: Outcomes) -> Decision:
    others = {each: one for each, one in outcomes.items() if one.status != "Completed"}
    return _skip("all_success", others) if others else RUN


def _all_done(_: Outcomes) -> Decision:
    return RUN


def _one_success(outcomes: Outcomes) -> Decision:
    succeeded = any(one.status == "Completed" for one in outcomes.values())
    return RUN if succeeded else _skip("one_success", outcomes)


def _one_failed(outcomes: Outcomes) -> Decision:
    return RUN if any(map(is_failure, outcomes.values())) else _skip("one_failed", outcomes)


def _none_failed(outcomes: Outcomes) -> Decision:
    failed = {each: one for each, one in outcomes.items() if is_failure(one)}
    return _skip("none_failed", failed) if failed else RUN


def is_failure(outcome: Outcome) -> bool:
    return outcome.status in ("Failed", "Cancelled") or outcome.blocked


def _skip(rule: str, culprits: Outcomes) -> Skip:
    told = ", ".join(f"'{each}' is {one.status}" for each, one in culprits.items())
    return Skip(f"{rule}: {told}", blocked=any(map(is_failure, culprits.values())))


NAMED_RULES: Final[Mapping[str, Callable[[Outcomes], Decision]]] = {
    "all_success": _all_success,
    "all_done": _all_done,
    "one_success": _one_success,
    "one_failed": _one_failed,
    "none_failed": _none_failed,
    FINALLY: _all_done,
}
