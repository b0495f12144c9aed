"""Whether two workflows or tasks with the same name are the same code, built twice.

With two different ones, nobody could tell later which of them a stored task belongs to. Building
the same workflow again in a function, or importing it again, is harmless and common.
"""

from typing import Any

from layby.workflow.workflow import AnyTask, Workflow


def is_same_code(one: Workflow, other: Workflow) -> bool:
    return one is other or (
        list(one.tasks) == list(other.tasks)
        and all(is_same_task(task, other.tasks[key]) for key, task in one.tasks.items())
    )


def is_same_task(one: AnyTask, other: AnyTask) -> bool:
    return one is other or (
        one.dependencies == other.dependencies
        and one.process == other.process
        and one.group == other.group
        and _is_same_function(one.function, other.function)
    )


def _is_same_function(one: Any, other: Any) -> bool:
    """The same code with equal defaults; closures are compared by what they hold."""
    if one is other:
        return True
    code = getattr(one, "__code__", None)
    if code is None or code != getattr(other, "__code__", None):
        return False
    return one.__defaults__ == other.__defaults__ and _is_same_closure(one, other)


def _is_same_closure(one: Any, other: Any) -> bool:
    cells = zip(one.__closure__ or (), other.__closure__ or (), strict=True)
    return all(_is_same_cell(mine, theirs) for mine, theirs in cells)


def _is_same_cell(one: Any, other: Any) -> bool:
    try:
        mine, theirs = one.cell_contents, other.cell_contents
    except ValueError:  # not filled yet
        return False
    return mine is theirs or (type(mine) is type(theirs) and bool(mine == theirs))
