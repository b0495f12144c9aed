"""Everything that passes options on to a Runner takes the same ones, with the same types."""

import inspect
from typing import get_type_hints

import pytest

from layby import BlockingRunner, Run, Runner, Schedule
from layby.runner.blocking_runner import BlockingRun, BlockingSchedule
from layby.runner.runner_options import RunnerOptions

VERBS = [
    name
    for name, value in vars(BlockingRunner).items()
    if inspect.isfunction(value) and not name.startswith("_") and name != "wait"
]


def test_the_options_are_those_of_a_runner():
    """Whoever adds one adds it here as well."""
    hints = get_type_hints(Runner.__init__)
    named = {
        name: hints[name] for name in inspect.signature(Runner).parameters if name != "address"
    }
    assert get_type_hints(RunnerOptions) == named


def parameters_of(function: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("verb", VERBS)
def test_a_blocking_verb_takes_what_the_other_takes(verb):
    """Names, kinds, defaults and types."""
    ours, theirs = parameters_of(getattr(BlockingRunner, verb)), getattr(Runner, verb)
    assert {name: _plain(each) for name, each in ours.items()} == {
        name: _plain(each) for name, each in parameters_of(theirs).items()
    }


@pytest.mark.parametrize(("blocking", "other"), [(BlockingRun, Run), (BlockingSchedule, Schedule)])
def test_what_they_return_likewise(blocking, other):
    """A run and a schedule."""
    for name, value in vars(blocking).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            assert parameters_of(value) == parameters_of(getattr(other, name)), name


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Each module has a type variable of its own."""
    return parameter.replace(annotation=str(parameter.annotation).replace("~", ""))
