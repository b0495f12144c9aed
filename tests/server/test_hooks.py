"""Links: who has one can settle one promise, once, for a while, and reach nothing else."""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from layby import Conflict, Runner, task
from layby.core.commands import GetPromise
from layby.core.replies import PromiseData
from layby.server.hooks import FORM, PER_MINUTE, Hooks
from layby.testing import current_clock, virtual_test
from tests.helpers.server_thread import server_elsewhere
from tests.helpers.workers import flow_of, settled_down, until

ID = "run/r:t.c.approval.approval-1"
DAY = 86_400_000


@dataclass
class Price:
    amount: int
    currency: Literal["EUR", "USD"]
    note: str | None = None
    final: bool = False


class Clicks:
    """Somebody with a link to this promise."""

    def __init__(self, runner: Runner, promise_id: str = ID, days: float = 1) -> None:
        self.hooks = Hooks(runner.client, b"k" * 32, lambda: "http://l/", runner.now)
        link = self.hooks.link(promise_id, runner.now() + round(days * DAY))
        self.url = link.url
        self.token = link.url.removeprefix("http://l/hooks/")

    async def look(self) -> tuple[int, str]:
        found = await self.hooks.show(self.token)
        return found.status, found.body.decode()

    async def send(self, **fields: str) -> tuple[int, str]:
        found = await self.hooks.settle(self.token, FORM, urlencode(fields).encode())
        return found.status, found.body.decode()

    async def post(self, value: Any) -> tuple[int, Any]:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        found = await self.hooks.settle(self.token, "application/json", body)
        return found.status, json.loads(found.body)


def asks(*args: Any, **options: Any) -> Any:
    @task(id="t")
    async def body(context, handle):
        answer = await handle.approval(*args, **options)
        value = answer.value
        context["got"] = [answer.approved, answer.by, answer.reason]
        context["value"] = (
            [value.amount, value.currency, value.note, value.final] if value else None
        )

    return flow_of(body)


@virtual_test
async def test_looking_settles_nothing_and_a_form_does():
    """A scanner of mail opens every link; only a person sends the form."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("Ship <b>order</b> 7?"), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        for _ in range(3):
            status, html = await clicks.look()
            assert status == 200
            assert "Ship &lt;b&gt;order&lt;/b&gt; 7?" in html
            assert "<script" not in html
        assert len(await runner.approvals()) == 1
        status, html = await clicks.send(decision="approve", by="Anna", reason="paid")
        assert status == 200
        assert "Thank you" in html
        assert (await run.result())["got"] == [True, "Anna", "paid"]


@virtual_test
async def test_a_second_answer_is_told_who_and_when():
    """The same again is fine, as after a double click; another one is too late."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        await clicks.send(decision="deny", by="Anna")
        day = "202"
        for given, status in (("deny", 200), ("approve", 409)):
            again, html = await clicks.send(decision=given, by="Bob")
            assert again == status
            assert "The answer is no, by Anna on " + day in html
        status, told = await clicks.post({"approved": True})
        assert (status, told["by"], told["state"]) == (409, "Anna", "rejected")
        assert (await clicks.look())[0] == 200
        await run.result()


@virtual_test
async def test_a_form_from_a_schema_is_read_and_checked():
    """A wrong field shows the form again with what was filled in; nothing is settled."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("How much?", Price), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        _, html = await clicks.look()
        names = set(re.findall(r'name="(value\.\w+)"', html))
        assert names == {"value.amount", "value.currency", "value.note", "value.final"}
        filled = {"decision": "approve", "value.amount": "4x", "value.currency": "EUR"}
        status, html = await clicks.send(**filled, **{"value.note": "<i>"})
        assert status == 400
        assert "must be a number" in html
        assert "&lt;i&gt;</textarea>" in html
        status, html = await clicks.send(decision="approve", **{"value.amount": "4"})
        assert status == 400
        status, html = await clicks.send(**(filled | {"value.amount": "40"}))
        assert status == 200, html
        assert (await run.result())["value"] == [40, "EUR", None, False]


@virtual_test
async def test_programs_post_json():
    """For an approval, what a person would say; nonsense is refused and leaves it open."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        deep = b"[" * 30_000
        misspelt = ({"approved": True, "reson": "if it is paid"}, {"approved": True, "by": ["bot"]})
        unfit = (b"{", deep, [], {}, {"approved": "yes"}, {"approved": True, "value": 3})
        for wrong in (*unfit, *misspelt):
            assert (await clicks.post(wrong))[0] == 400
        told = (await clicks.post({"approve": True}))[1]
        assert told["error"].startswith("'approve' is not known: give approved, ")
        status, told = await clicks.post({"approved": True, "by": "bot"})
        assert (status, told["state"], told["by"]) == (200, "resolved", "bot")
        assert (await run.result())["got"] == [True, "bot", ""]


@virtual_test
async def test_a_promise_without_a_question_takes_any_json():
    """The body of a webhook is the value."""

    @task(id="t")
    async def body(context, handle):
        context["got"] = await (await handle.promise("paid"))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await settled_down()
        clicks = Clicks(runner, "run/r:t.c.promise.paid")
        assert "Please confirm" in (await clicks.look())[1]
        assert (await clicks.post({"amount": 7}))[0] == 200
        assert (await clicks.post({"amount": 7}))[0] == 200
        assert (await clicks.post({"amount": 8}))[0] == 409
        assert (await run.result())["got"] == {"amount": 7}


@virtual_test
async def test_too_late():
    """An expired link, an approval past its time, one that was withdrawn, a task that is over."""
    async with Runner("memory:") as runner:
        flow = asks("Ship it?", timeout=3600)
        await runner.start(flow, run_id="r")
        await settled_down()
        soon, late = Clicks(runner, days=0.01), Clicks(runner, days=9)
        await asyncio.sleep(1000)
        assert (await soon.look())[0] == 410
        assert (await soon.post({"approved": True}))[0] == 410
        await asyncio.sleep(3600)
        assert (await late.look())[0] == 410
        status, told = await late.post({"approved": True})
        assert status == 410
        assert "time to answer is over" in told["error"]
        run = await runner.start(flow, run_id="s")
        await settled_down()
        other = Clicks(runner, ID.replace("run/r", "run/s"))
        await run.cancel()
        assert (await other.post({"approved": True}))[0] == 410
        assert current_clock().elapsed > 0


@virtual_test
async def test_after_its_task_nobody_needs_an_answer():
    """Of an approval and of a token, for who looks and for who sends."""

    @task(id="t")
    async def body(context, handle):
        await handle.promise("paid")
        await handle.approval("Ship it?").open()
        await handle.sleep(60)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await settled_down()
        token, asked = Clicks(runner, "run/r:t.c.promise.paid"), Clicks(runner)
        for clicks in (token, asked):
            assert (await clicks.look())[0] == 200
        await run.result()
        for clicks in (token, asked):
            status, html = await clicks.look()
            assert status == 410
            assert "has ended" in html
            assert "<form" not in html
            assert (await clicks.send(decision="approve"))[0] == 410
            assert (await clicks.post({"approved": True}))[0] == 410
        left = (await runner.send(GetPromise(id="run/r:t.c.promise.paid"))).data
        assert isinstance(left, PromiseData)
        assert left.promise.is_pending


@virtual_test
async def test_a_link_reaches_nothing_else():
    """A wrong or foreign signature is told nothing, whatever it names; runs cannot be ended."""
    async with Runner("memory:") as runner:
        await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        forged = Hooks(runner.client, b"x" * 32, lambda: "http://l", runner.now)
        for text in ("", "x", "a.b", forged.link(ID, 2**52).url.rpartition("/")[2]):
            for answered in (
                await clicks.hooks.show(text),
                await clicks.hooks.settle(text, FORM, b"decision=approve"),
            ):
                assert answered.status == 404
                assert b"Ship" not in answered.body
        for other in ("run/r", "run/r:t"):
            assert (await Clicks(runner, other).post({"approved": True}))[0] == 410
        assert (await Clicks(runner, "never/made").post(1))[0] == 410
        assert (await runner.send(GetPromise(id="never/made"))).status == 404
        assert len(await runner.approvals()) == 1


@virtual_test
async def test_one_link_cannot_be_used_without_end():
    """Whoever has one does not get to read the store as fast as they can."""
    async with Runner("memory:") as runner:
        await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        clicks = Clicks(runner)
        seen = [(await clicks.look())[0] for _ in range(PER_MINUTE + 1)]
        assert seen == [200] * PER_MINUTE + [429]
        await asyncio.sleep(60)
        assert (await clicks.look())[0] == 200


@virtual_test
async def test_without_a_server_there_is_no_link():
    """And the error says what to do."""

    @task(id="t")
    async def body(context, handle):
        with pytest.raises(Conflict, match="run `layby serve`"):
            await handle.approval("Ship it?").url()

    async with Runner("memory:") as runner:
        await (await runner.start(flow_of(body), run_id="r")).result()


def clicked(url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, Any, str]:
    try:
        with urlopen(Request(url, body, method=method), timeout=30) as answered:
            return answered.status, answered.headers, answered.read().decode()
    except HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_over_http_from_the_task_to_the_click(tmp_path: Path) -> None:
    """The link is the same in every run of the body and after a restart of the server."""
    links: list[str] = []

    @task(id="t")
    async def body(context, handle):
        asked = handle.approval("Ship it?")
        links.append(await asked.url())
        links.append(await asked.url())
        context["by"] = (await asked).by

    async def main(url: str) -> Any:
        async with Runner(url, slots=1) as runner:
            run = await runner.start(flow_of(body), run_id="r")
            await until(lambda: len(links) == 2)
            await asyncio.get_running_loop().run_in_executor(None, use, links[0])
            return await run.result()

    def use(link: str) -> None:
        status, headers, html = clicked(link)
        assert (status, headers["referrer-policy"]) == (200, "no-referrer")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert "Ship it?" in html
        assert clicked(link, method="HEAD")[0] == 200
        assert clicked(link, method="DELETE")[0] == 405
        assert clicked(link[:-2])[0] == 404
        status, _, said = clicked(link, b"x" * 70_000)
        assert status == 413
        assert "server.max_body" not in said, "which would not help"
        assert clicked(link, b"decision=approve&by=Anna")[0] == 200

    with server_elsewhere({"db": f"sqlite:{tmp_path / 'a.db'}"}) as there:
        direct = there.server.url
        result = asyncio.run(main(direct))
    assert result["by"] == "Anna"
    assert links[0] == links[1]
    assert links[0].startswith(f"{direct}/hooks/")
    with server_elsewhere({"db": f"sqlite:{tmp_path / 'a.db'}"}) as there:
        again = links[0].replace(direct, there.server.url)
        status, _, html = clicked(again)
        assert status == 200
        assert "by Anna" in html
