"""docs/web-apps.md: its apps, as a server of web pages would run them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from layby import BlockingRunner
from tests.examples.test_docs import ROOT, URL, blocks
from tests.helpers.server_thread import Elsewhere, server_elsewhere

PAGE = {
    block.code.split()[1].rstrip(":"): block.code
    for block in blocks((ROOT / "docs" / "web-apps.md").read_text())
}
PATIENCE_S = 60.0


@pytest.fixture
def there() -> Iterator[Elsewhere]:
    """A server and a worker with the page's workflow, which it has published."""
    with server_elsewhere() as elsewhere, BlockingRunner(elsewhere.server.url) as worker:
        defined = ran("flows.py", elsewhere.url)
        worker.resolve("approval-0", True)
        worker.execute(defined["order"], {"order": 0, "amount": 1})
        yield elsewhere


def ran(name: str, url: str) -> dict[str, Any]:
    """What a file of the page defines, with the server's address in it."""
    defined: dict[str, Any] = {"__name__": name.removesuffix(".py")}
    exec(compile(PAGE[name].replace(URL, url), name, "exec"), defined)
    return defined


def test_the_page_has_these_files():
    """What the tests below run is all there is."""
    assert set(PAGE) == {"flows.py", "web.py", "orders.py", "settle.py"}


def test_an_app_of_starlette(there: Elsewhere):
    """Starts once, shows, settles; what is unknown is a 404."""
    app = ran("web.py", there.url)["app"]

    async def scene() -> None:
        async with alive(app):
            assert await asked(app, "GET", "/orders/7") == (404, "order-7")
            too_long = f"/orders/{'7' * 300}"
            assert (await asked(app, "POST", too_long, {"amount": 20}))[0] == 400
            for _ in range(2):
                told = await asked(app, "POST", "/orders/7", {"amount": 20})
                assert told == (202, {"run": "order-7"})
            assert (await asked(app, "POST", "/orders/7/approval"))[0] == 204
            async with asyncio.timeout(PATIENCE_S):
                while (await asked(app, "GET", "/orders/7"))[1]["state"] != "Completed":  # noqa: ASYNC110 - as a person would
                    await asyncio.sleep(0.02)
        assert there.count("layby.worker.take") == 0

    asyncio.run(scene())


def test_a_plain_script(there: Elsewhere, tmp_path: Path):
    """As it stands."""
    file = tmp_path / "settle.py"
    file.write_text(PAGE["settle.py"].replace(URL, there.url))
    done = subprocess.run(
        [sys.executable, "-W", "error", file],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_an_app_of_django(there: Elsewhere, tmp_path: Path):
    """In a process of its own, since Django is configured once for each."""
    pytest.importorskip("django", reason="Django is not installed: run `make install`")
    (tmp_path / "orders.py").write_text(PAGE["orders.py"].replace(URL, there.url))
    (tmp_path / "asks.py").write_text(DJANGO)
    done = subprocess.run(
        [sys.executable, "asks.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "Not Found: /orders/5/state\n")
    assert done.stdout.splitlines() == ["404", '202 {"run": "order-5"}', '202 {"run": "order-5"}']


DJANGO = """
from django.conf import settings
settings.configure(ROOT_URLCONF="orders", ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)
import django
django.setup()
from django.test import Client

client = Client()
print(client.get("/orders/5/state").status_code)
for _ in range(2):
    answer = client.post("/orders/5", {"amount": 2}, content_type="application/json")
    print(answer.status_code, answer.content.decode())
assert client.get("/orders/5/state").status_code == 200
"""


# --- a server of web pages, as far as it is needed -------------------------------------------


@asynccontextmanager
async def alive(app: Any) -> AsyncIterator[None]:
    """The app's lifespan."""
    asks: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    living = asyncio.create_task(app({"type": "lifespan"}, asks.get, told.put))
    asks.put_nowait({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    yield
    asks.put_nowait({"type": "lifespan.shutdown"})
    assert (await told.get())["type"] == "lifespan.shutdown.complete"
    await living


async def asked(app: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status, and the JSON of the answer; of an error, the id it names."""
    sent: list[dict[str, Any]] = []
    content = b"" if body is None else json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
        "app": app,
    }
    await app(scope, receive, send)
    text = b"".join(each.get("body", b"") for each in sent)
    answer = json.loads(text) if text else None
    if isinstance(answer, dict) and "error" in answer:
        assert "order-7" in answer["error"]
        answer = "order-7"
    return sent[0]["status"], answer
