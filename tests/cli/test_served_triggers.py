"""The trigger manager of a server: off until it is configured, then for what is allowed only."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from layby import Runner, TaskHandle, task, triggers
from layby.cli.serve import beside
from layby.cli.served_triggers import access_of
from layby.errors import UsageError
from layby.server.server import Server
from layby.server.server_config import HttpConfig, ServerConfig, load
from layby.server.trigger_config import SqlConnection, TriggersConfig, TriggerSecret
from layby.trigger_manager import untaken_triggers
from tests.helpers.postgres import cluster
from tests.helpers.push_receivers import on_loop
from tests.helpers.workers import flow_of


async def fetched(context: Any, handle: TaskHandle, event: Any) -> None:
    context["size"] = event["size"]


def waiting_for(path: Path) -> Any:
    @task(id="wait")
    async def wait(context: Any, handle: TaskHandle) -> None:
        await handle.defer(triggers.FileExists(str(path), min_size=3, every=0.1), resume=fetched)

    return flow_of(wait)


def served(db: str, config: TriggersConfig) -> Server:
    return Server(ServerConfig(db=db, server=HttpConfig(port=0), triggers=config))


@pytest.mark.parametrize("store", ["memory", "postgres"])
def test_a_server_polls_what_is_allowed(store, tmp_path):
    """For the tasks of a worker that may poll nothing; one manager, visible in the metrics."""

    @on_loop
    async def test():
        db = "memory:" if store == "memory" else cluster().url(cluster().new_database())
        server = served(db, TriggersConfig(folders=(str(tmp_path),), capacity=7))
        await server.start()
        try:
            async with beside(server), Runner(server.url) as runner:
                run = await runner.start(waiting_for(tmp_path / "report.csv"))
                await _until_scraped(server, b"layby_triggers_running 1.0")
                (tmp_path / "report.csv").write_text("abc")
                assert (await run.result())["size"] == 3
                await _until_scraped(server, b"layby_triggers_capacity 7.0")
        finally:
            await server.stop()

    test()


@on_loop
async def test_a_server_polls_nothing_unless_it_is_configured(tmp_path):
    """The task waits, and a metric says that nobody runs its trigger."""
    server = served("memory:", TriggersConfig())
    await server.start()
    try:
        async with beside(server), Runner(server.url) as runner:
            await runner.start(waiting_for(tmp_path))
            await _until_scraped(server, b"layby_triggers_untaken 1.0")
    finally:
        await server.stop()


@on_loop
async def test_a_server_says_what_nobody_may_poll(tmp_path, caplog, monkeypatch):
    """In its own log, by itself."""
    monkeypatch.setattr(untaken_triggers, "LOOK_S", 0.02)
    monkeypatch.setattr(untaken_triggers, "PATIENCE_MS", 0)
    server = served("memory:", TriggersConfig())
    await server.start()
    try:
        async with beside(server), Runner(server.url) as runner:
            for number in range(2):
                await runner.start(waiting_for(tmp_path / "a"), run_id=f"r{number}")
            while "FileExists" not in caplog.text:  # noqa: ASYNC110 - a log
                await asyncio.sleep(0.01)
            assert f"FileExists of '{tmp_path / 'a'}' is off in every process" in caplog.text
            assert "run/r" in caplog.text
            assert "triggers.folders" in caplog.text
    finally:
        await server.stop()


async def _until_scraped(server: Server, text: bytes) -> None:
    while text not in await server._metrics.scrape():
        server._metrics._stats._stale_at = 0.0  # type: ignore[union-attr]
        await asyncio.sleep(0.05)


def test_the_settings_come_from_a_file(tmp_path):
    """Tables have names; secrets are references; all of it becomes the access of the manager."""
    file = tmp_path / "layby.toml"
    file.write_text(
        """
        [triggers]
        hosts = ["api.example.org", "*.example.com"]
        allow = ["10.0.0.0/8"]
        folders = ["/srv/in"]
        [[triggers.connections]]
        name = "shop"
        url = "env:SHOP_URL"
        [[triggers.secrets]]
        name = "api"
        value = "env:API_TOKEN"
        hosts = ["api.example.org"]
        """
    )
    config = load(file=file).triggers
    access = access_of(config)
    assert set(access.kinds) == {"FileExists", "HttpPoll", "SqlPoll"}
    assert (access.connections, access.secrets[0].hosts) == (
        {"shop": "env:SHOP_URL"},
        ("api.example.org",),
    )
    assert "SHOP_URL" not in repr(config)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (TriggersConfig(connections=(SqlConnection("a", "shop.db"),)), "sqlite:PATH"),
        (TriggersConfig(secrets=(TriggerSecret("a", "t0p", ("x",)),)), "not the secret"),
        (TriggersConfig(secrets=(TriggerSecret("a", "env:X", ()),)), "has no hosts"),
        (
            TriggersConfig(connections=(SqlConnection("a", "sqlite:x"),) * 2),
            "give each its own name",
        ),
    ],
    ids=["address", "secret", "hosts", "names"],
)
def test_settings_that_cannot_be_right(wrong, told, monkeypatch, tmp_path):
    """They are told at the start, and no secret is repeated."""
    from layby.server.trigger_config import trigger_conflicts

    problems = "; ".join(trigger_conflicts(wrong))
    assert told in problems
    assert "t0p" not in problems


@pytest.mark.parametrize(
    "flags",
    [{"triggers.hosts": "http://a"}, {"triggers.folders": "in"}, {"triggers.allow": "10.0.0.0/99"}],
    ids=["host", "folder", "network"],
)
def test_values_that_are_refused(flags):
    """With the name of the setting."""
    with pytest.raises(UsageError, match=next(iter(flags))):
        load(flags)
