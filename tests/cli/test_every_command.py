"""Every command of `layby` takes a PostgreSQL database, and does there what it is for."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest

from layby.cli.main import cli
from layby.clock import SystemClock
from layby.core.commands import Command, CreateBelow
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.postgres import PostgresStore
from layby.wire import json_values
from tests.cli import test_database, test_demo
from tests.helpers import requests as r
from tests.helpers.cli_processes import layby
from tests.helpers.command_line import typed
from tests.helpers.postgres import PASSWORD, cluster

FLOWS = Path(__file__).with_name("flows.py")
WITHOUT_STORE = {"graph plan", "graph render", "graph run", "graph validate", "completion"}
LONG = {"serve", "dev"}
"""They run until they are stopped."""
ELSEWHERE = {
    "demo": test_demo.test_the_demo_shows_the_same_on_a_database,
    "worker": test_database.test_a_worker_works,
}
"""Commands with a test of their own."""

TARGET = ("--tag", "resonate:target=poll://any@none")
CHILD = '{"kind": "promise.create", "data": {"id": "t.1", "timeoutAt": 9007199254740991}}'
CRON = ("--cron", "0 3 * * *")
IN_TURN: tuple[tuple[str, *tuple[str, ...]], ...] = (
    ("migrate",),
    # promises
    ("promises create", "p", "--timeout", "1h"),
    ("promises get", "p"),
    ("promises register-listener", "p", "poll://any@none"),
    ("promises resolve", "p"),
    ("promises create", "q", "--timeout", "1h"),
    ("promises reject", "q"),
    ("promises create", "u", "--timeout", "1h"),
    ("promises cancel", "u"),
    ("promises search",),
    ("resolve", "paid", "--null"),
    ("reject", "refused", "--reason", "no"),
    # tasks
    ("tasks create", "t", "--pid", "me", *TARGET),
    ("tasks fence", "t", "--version", "1", "--action", CHILD),
    ("tasks heartbeat", "--pid", "me", "--task", "t=1"),
    ("tasks suspend", "t", "--version", "1", "--on", "t.1"),
    ("promises resolve", "t.1"),
    ("tasks claim", "t", "--version", "1", "--pid", "me"),
    ("tasks release", "t", "--version", "2"),
    ("tasks halt", "t"),
    ("tasks continue", "t"),
    ("tasks get", "t"),
    ("tasks search",),
    ("promises create", "w", "--timeout", "1h"),
    ("promises register-callback", "w", "t"),
    ("tasks claim", "t", "--version", "2", "--pid", "me"),
    ("tasks complete", "t", "--version", "3"),
    ("invoke", "call", "-f", "hello", "--target", "poll://any@none"),
    # runs
    ("run", f"{FLOWS}:flow", "--id", "done", "--context", "n=2"),
    ("runs",),
    ("tree", "done"),
    ("why", "done"),
    # a task that asks, and one that is deferred
    ("approvals",),
    ("approve", "a:a.c.approval.first"),
    ("deny", "a:a.c.approval.second", "--reason", "no"),
    ("waiting",),
    ("triggers",),
    ("extend", "d:a", "--timeout", "2h"),
    ("wake", "d:a"),
    ("halt", "d"),
    ("continue", "d"),
    ("cancel", "d"),
    ("rerun", "done", "--from", "last"),
    # rules
    ("schedules add", f"{FLOWS}:flow", *CRON, "--id", "nightly"),
    ("schedules create", "made", *CRON, *TARGET),
    ("schedules list",),
    ("schedules show", "nightly"),
    ("schedules pause", "nightly"),
    ("schedules unpause", "nightly"),
    ("schedules start-now", "nightly"),
    ("schedules delete", "nightly"),
    ("limits set", "api", "--concurrency", "2"),
    ("limits show", "api"),
    ("limits list",),
    ("limits delete", "api"),
    ("prune", "--completed", "0s"),
    ("doctor",),
)
"""What is typed, one after the other; each must say that it worked."""


def commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """All that can be typed, with those of groups by both words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def test_each_command_is_tried() -> None:
    """A new one has to be added to those that are tried on a database, or needs no store."""
    tried = {name for name, *_ in IN_TURN}
    assert {name for name, _ in commands()} == tried | LONG | WITHOUT_STORE | ELSEWHERE.keys()


@pytest.mark.parametrize("command", sorted({name for name, *_ in IN_TURN} | {"serve", "dev"}))
def test_the_address_is_an_option_or_a_variable(command: str) -> None:
    """Of every command alike: what cannot be an address is refused either way."""
    words = f"host=h password={PASSWORD}"
    step = next((rest for name, *rest in IN_TURN if name == command), [])
    for said in (
        typed(*command.split(), *step, "--db", words),
        typed(*command.split(), *step, LAYBY_DB=words),
    ):
        assert "write it as a URL" in said.err
        assert said.code == 2
        assert PASSWORD not in said.out + said.err


@pytest.mark.shared
def test_each_works_on_a_database() -> None:
    """To its success, one after the other; and none of them shows the password."""
    url = cluster().tcp_url(cluster().new_database())
    for at, (command, *rest) in enumerate(IN_TURN):
        if command == "approvals":
            fill(url)
        by_variable = at % 2 == 0
        given = () if by_variable else ("--db", url)
        said = typed(*command.split(), *rest, *given, **({"LAYBY_DB": url} if by_variable else {}))
        assert said.code == 0, (command, said)
        assert PASSWORD not in said.out + said.err, command


@pytest.mark.shared
@pytest.mark.parametrize("command", sorted(LONG))
def test_servers_work_on_a_database(command: str, tmp_path: Path) -> None:
    """They say which one they serve, without the password, and are healthy."""
    url = cluster().tcp_url(cluster().new_database())
    port = "--port=0"
    with layby(command, port, "--db", url) as server:
        line = server.hear("layby serves")
        assert url.replace(PASSWORD, "***") in line
        served = line.partition(" at ")[2].split()[0]
        assert typed("doctor", "--url", served).code == 0
        server.stop()
    assert PASSWORD not in server.tail


def fill(url: str) -> None:
    """Run `a`, whose task asks for two approvals, and run `d`, whose task is deferred."""
    store = PostgresStore(url, Settings(), next_after)
    engine = Engine(store, store.clock_beside(SystemClock().elapsed))
    engine.start_inline()
    with closing(_Stopping(engine)):
        asked = [ask("first"), ask("second")]
        for each in (r.run("run/a", with_take=r.take(), a=""), *asked):
            assert engine.call(each).is_ok
        spec = r.trigger("Poll", url="u")
        for each in (r.run("run/d", with_take=r.take(), a=""), r.defer("run/d:a", 1, spec, 60_000)):
            assert engine.call(each).is_ok


class _Stopping:
    def __init__(self, engine: Engine) -> None:
        self.close = engine.stop


def ask(name: str) -> Command:
    tags = {"layby:approval": "true", "layby:asker": "run/a:a", "resonate:external": "true"}
    param = json_values.to_value({"prompt": "Ship it?"})
    promise_id = f"run/a:a.c.approval.{name}"
    return CreateBelow(id="run/a:a", version=1, promise_id=promise_id, param=param, tags=tags)
