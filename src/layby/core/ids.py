"""What the text of an id says: which tree it belongs to, and which life of a run."""

from typing import Final


def root_of(promise_id: str) -> str:
    """The run or call tree an id belongs to: text before the first ':', else the first '.'."""
    head, colon, _ = promise_id.partition(":")
    return head if colon else promise_id.partition(".")[0]


def ancestors_of(promise_id: str) -> list[str]:
    """The ids that this one continues, whether they exist or not: text before each ':' and '.'."""
    return [promise_id[:at] for at, sign in enumerate(promise_id) if at and sign in ":."]


LIFE: Final = "life/"
"""What the ids of a run's later lives have after the run's own: no task's name contains a '/'."""


def life_id(run: str, life: int) -> str:
    """The root of a life of the run with this (first) root."""
    return run if life == 1 else f"{run}:{LIFE}{life}"


def life_root_of(promise_id: str) -> str:
    """The root whose run, or life of a run, a node belongs to."""
    root = root_of(promise_id)
    if not promise_id.startswith(f":{LIFE}", len(root)):
        return root
    end = promise_id.find(":", len(root) + 1)
    return promise_id if end < 0 else promise_id[:end]


def life_number(life_root: str) -> int:
    """Which life of its run this root is of."""
    number = life_root.partition(f":{LIFE}")[2]
    return int(number) if number.isdecimal() else 1
