"""What the pages send with curl does what they say: the very text of each request is sent."""

import json
import re
from pathlib import Path
from typing import Any

from layby.core import commands as c
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from tests.helpers import requests as r
from tests.helpers.worlds import World

DOCS = Path(__file__).parents[2] / "docs"
PAID = {"headers": {}, "data": "eyJhbW91bnQiOjd9"}


def typed(page: str) -> list[dict[str, Any]]:
    """The requests of a page, in order."""
    text = (DOCS / page).read_text()
    return [json.loads(each) for each in re.findall(r"\$ curl [^']*-d '(\{[^']*\})'", text)]


def shown(page: str, begins: str) -> Any:
    """The JSON of a page that begins so."""
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return next(json.loads(each) for each in blocks if each.startswith(begins))


def sent(world: World, request: dict[str, Any]) -> Any:
    status, data = world.ask(request["kind"], request["data"], world.now, request["head"]["corrId"])
    assert status == 200, data
    return data


def test_a_task_is_deferred_and_acquired_again_as_the_page_shows(world: World) -> None:
    """The page is about deferring from any language."""
    (defer,) = typed("deferring.md")
    tags = {"resonate:target": "poll://any@default"}
    promise = {"id": "job-7", "timeoutAt": 2**53 - 2, "tags": tags}
    action = {"kind": "promise.create", "head": {}, "data": promise}
    created = {"pid": "w", "ttl": 60_000, "action": action}
    assert world.ask("task.create", created, world.now)[0] == 200
    assert sent(world, defer)["task"]["state"] == "deferred"
    paid = {"id": "paid-7", "state": "resolved", "value": PAID}
    assert world.ask("promise.settle", paid, world.now)[0] == 200
    acquire = {"id": "job-7", "version": 1, "pid": "w", "ttl": 60_000}
    status, answer = world.ask("task.acquire", acquire, world.now)
    expected = shown("deferring.md", '{"id": "job-7"')
    expected["resume"]["event"]["settledAt"] = world.now
    assert (status, answer["task"]) == (200, expected)


def test_the_wait_of_a_run_is_found_and_woken_as_the_page_shows(world: World) -> None:
    """The page is about ending a wait by hand."""
    find, wake = typed("waiting.md")
    node, record = "run/order-7:nap", "run/order-7:nap.w0.sleep-1"
    world.ok(r.run("run/order-7", nap="", with_take=r.take()))
    tags = {"resonate:timer": "true", MOVABLE: "true"}
    world.ok(c.CreateBelow(id=node, version=1, promise_id=record, timeout=9_000, tags=tags))
    told = WaitingOn("sleep", "sleeps", record_id=record).to_text()
    world.ok(c.AnnotateTask(id=node, version=1, sub_status="Deferred", waiting_on=told))
    assert sent(world, find) == {"task": node, "wait": record}
    assert json.dumps(sent(world, find), separators=(",", ":")) in (DOCS / "waiting.md").read_text()
    sent(world, wake)
    assert world.promise(record).state == "resolved"
