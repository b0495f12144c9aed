"""Classes by name: what can be registered, stored and read again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from layby import triggers
from layby.errors import UsageError
from layby.triggers.registry import REGISTRY, TriggerRegistry
from layby.wire.typed_values import Misfit


class JobDone(triggers.Trigger, frozen=True):
    job: str
    tries: int = 3

    async def run(self) -> Any:
        return self.job


class Asked(triggers.PolledTrigger, frozen=True):
    key: str

    def poll(self) -> Any:
        return self.key


BUILT_IN = [
    triggers.FileExists("/tmp/report.csv", min_size=3, settled_for=2, every=1.5),
    triggers.HttpPoll(
        "https://api.example.org/jobs/7",
        method="POST",
        headers={"Accept": "text/html", "Authorization": triggers.SecretNamed("api", "Bearer ")},
        json={"deep": [1]},
        status=(200, 204),
        until=triggers.Compare("/state", "in", ["done", "failed"]),
        backoff=2.0,
        max_interval=600.0,
    ),
    triggers.SqlPoll("shop", "SELECT 1 WHERE ? > 2", params=(3, "a", None), max_errors=0),
]


@pytest.mark.parametrize("trigger", BUILT_IN)
def test_what_is_stored_is_what_comes_back(trigger):
    """Through JSON, defaults left out."""
    assert REGISTRY.restored(trigger.kind(), trigger.arguments()) == trigger
    assert "timeout" not in trigger.arguments()


def test_users_own_come_back_too():
    """Also with arguments that were left out."""
    registry = TriggerRegistry([JobDone, Asked])
    assert registry.restored("JobDone", {"job": "a"}) == JobDone("a", 3)
    assert registry.restored("Asked", Asked("k", every=5).arguments()) == Asked("k", every=5)
    assert set(registry.own_code) == {"JobDone", "Asked"}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("JobDone", {"job": 7}),
        ("JobDone", {}),
        ("JobDone", "text"),
        ("Asked", {"key": "k", "evry": 3}),
        ("Asked", {"key": "k", "every": 0}),
        ("Asked", {"key": "k", "jitter": 1.5}),
        ("Asked", {"key": "k", "backoff": 0.5}),
        ("Asked", {"key": "k", "max_interval": 1.0}),
    ],
)
def test_what_does_not_fit_its_class_is_told(name, args):
    """The class has changed, or another language has made a mistake."""
    with pytest.raises((Misfit, UsageError)):
        TriggerRegistry([JobDone, Asked]).restored(name, args)


def _refused() -> list[Any]:
    class Plain:
        async def run(self) -> None: ...

    class NotAsync(triggers.Trigger, frozen=True):
        def run(self) -> None: ...

    class WithoutPoll(triggers.PolledTrigger, frozen=True):
        pass

    class BadCleanup(JobDone, frozen=True):
        def cleanup(self) -> None: ...

    class Delay(JobDone, frozen=True):
        pass

    class Lock(triggers.Trigger, frozen=True):
        lock: asyncio.Lock

        async def run(self) -> None: ...

    return [Plain, NotAsync, WithoutPoll, BadCleanup, Delay, Lock, JobDone("a")]


@pytest.mark.parametrize("number", range(7))
def test_what_cannot_be_registered(number):
    """Each is refused when it is registered, not when it is first run."""
    with pytest.raises(UsageError):
        TriggerRegistry([_refused()[number]])


@pytest.mark.parametrize("field", ["kind", "arguments", "sentence", "on_cancels", "cleanup"])
def test_a_field_in_the_place_of_a_method(field):
    """It is named when the class is registered; it could not be told from the method later."""
    body = {"__annotations__": {field: str}, "run": JobDone.run}
    metaclass: Any = type(triggers.Trigger)
    clash = metaclass("Clash", (triggers.Trigger,), body, frozen=True)
    with pytest.raises(UsageError, match=f"Clash has a field '{field}'"):
        TriggerRegistry([clash])


def test_a_name_stands_for_one_class():
    """The same class again is fine: a module may be loaded twice."""

    class Other(triggers.Trigger, frozen=True):
        @classmethod
        def kind(cls) -> str:
            return "JobDone"

        async def run(self) -> None: ...

    registry = TriggerRegistry([JobDone])
    registry.add(JobDone)
    with pytest.raises(UsageError, match="two triggers are named 'JobDone'"):
        registry.add(Other)


@pytest.mark.parametrize(
    "made",
    [
        lambda: triggers.FileExists("report.csv"),
        lambda: triggers.FileExists("/a", every=float("inf")),
        lambda: triggers.HttpPoll("ftp://example.org/x"),
        lambda: triggers.HttpPoll("https://user:secret@example.org/x"),
        lambda: triggers.HttpPoll("https://example.org", json={}),
        lambda: triggers.HttpPoll("https://example.org", timeout=0),
        lambda: triggers.HttpPoll("https://example.org", status=(1000,)),
        lambda: triggers.FileExists("/tmp/x", min_size=-1),
        lambda: triggers.FileExists("/tmp/x", settled_for=float("inf")),
        lambda: triggers.FileExists("/tmp/x", settled_for=float("nan")),
        lambda: triggers.SqlPoll("", "SELECT 1"),
        lambda: triggers.SqlPoll("shop", " "),
    ],
    ids=[
        "relative",
        "endless",
        "scheme",
        "password",
        "body",
        "timeout",
        "status",
        "size",
        "for ever",
        "nan",
        "connection",
        "query",
    ],
)
def test_mistakes_in_arguments(made):
    """They are told in the task that makes them."""
    with pytest.raises(UsageError):
        made()


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (triggers.HttpPoll, {"url": "https://e.org", "status": ("200",)}, "status of HttpPoll"),
        (triggers.HttpPoll, {"url": "https://e.org", "status": 200}, "status of HttpPoll"),
        (triggers.HttpPoll, {"url": "https://e.org", "method": "DELETE X"}, "method of HttpPoll"),
        (triggers.HttpPoll, {"url": "https://e.org", "every": 0}, "every of HttpPoll"),
        (triggers.HttpPoll, {"url": "https://e.org", "every": "1"}, "every of HttpPoll"),
        (triggers.HttpPoll, {"url": "https://e.org", "json": object()}, "json of HttpPoll"),
        (
            triggers.HttpPoll,
            {"url": "https://e.org", "until": "/a"},
            "until of HttpPoll must be a comparison such as triggers.Compare",
        ),
        (
            triggers.SqlPoll,
            {"connection": "s", "query": "SELECT 1", "until": len},
            "until of SqlPoll must be a comparison",
        ),
        (triggers.HttpPoll, {"url": "http://[::1"}, "url of HttpPoll"),
        (triggers.HttpPoll, {"url": "http://e.org:99999"}, "url of HttpPoll"),
        (triggers.HttpPoll, {"url": 7}, "url of HttpPoll"),
        (triggers.FileExists, {"path": Path("/a")}, "path of FileExists"),
        (triggers.SqlPoll, {"connection": "s", "query": b"SELECT 1"}, "query of SqlPoll"),
        (Asked, {"key": "k", "max_errors": 1.5}, "max_errors of Asked"),
    ],
)
def test_a_wrong_argument_is_named(kind, given, named):
    """By whoever makes the trigger, since nobody could run it."""
    with pytest.raises(UsageError, match=named):
        kind(**given)
