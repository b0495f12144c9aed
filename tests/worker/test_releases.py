"""Tasks are handed back together, and not by whoever has nothing to hand back any more."""

import asyncio
from typing import Any

import pytest

from layby.core.commands import Released, ReleaseTasks
from layby.core.replies import OK
from layby.errors import StoreUnavailable
from layby.testing import virtual_test
from layby.worker.releases import Releases


class Host:
    """A worker, as far as handing back goes."""

    incarnation = "1"

    def __init__(self) -> None:
        self.client: Any = self
        self.is_over = False
        self.failures = 0
        """How often the store does not answer what hands back the first claim."""
        self.sent: list[ReleaseTasks] = []
        self.spawned: list[asyncio.Task[Any]] = []
        self.gone: list[str] = []

    async def send(self, command: ReleaseTasks) -> Any:
        if self.failures and command.tasks[0].version == 1:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.sent.append(command)
        return OK

    def let_go(self, task_id: str, version: int) -> None:
        self.gone.append(task_id)

    def dispatch(self) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]":
        self.spawned.append(asyncio.get_running_loop().create_task(coroutine))
        return self.spawned[-1]


@virtual_test
async def test_those_of_one_turn_are_handed_back_together():
    """One command, and then nothing is known of them here."""
    host = Host()
    releases = Releases(host, "p")
    for name in "abc":
        releases.add(Released(name, 1))
    await asyncio.sleep(1)
    assert [[each.id for each in command.tasks] for command in host.sent] == [["a", "b", "c"]]
    assert host.gone == ["a", "b", "c"]


@virtual_test
async def test_the_first_word_about_a_claim_counts():
    """However long the store does not hear it: a later one does not overtake it."""
    host = Host()
    host.failures = 3
    releases = Releases(host, "p")
    releases.add(Released("a", 1, begun=False))
    await asyncio.sleep(0.05)
    releases.add(Released("a", 1))
    releases.add(Released("a", 2))
    await asyncio.sleep(10)
    heard = [each for command in host.sent for each in command.tasks]
    assert heard == [Released("a", 2), Released("a", 1, begun=False)]
    releases.add(Released("a", 1))
    await asyncio.sleep(1)
    assert len(host.sent) == 3


@pytest.mark.parametrize("ends_first", [True, False])
@virtual_test
async def test_who_is_over_hands_nothing_back(ends_first):
    """What it held belongs to others, and nobody would wait for the answer: its loop ends."""
    host = Host()
    releases = Releases(host, "p")
    host.is_over = ends_first
    releases.add(Released("a", 1))
    host.is_over = True
    await asyncio.sleep(1)
    assert (host.spawned, host.sent) == ([], [])
