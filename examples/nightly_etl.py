"""A nightly ETL on two slots: python examples/nightly_etl.py

Every night at two the numbers of all shops are fetched side by side, one task for each, the bank's
statement is ordered and waited for, and everything is loaded into a warehouse in one transaction.
One shop answers only the third time, and the statement takes a second: whoever retries or waits
holds no slot.

The program puts the schedule into nightly.db and then, so that you need not stay up, runs this
night by hand. A real one would stay open (or be a `layby worker`) and let the schedule do it.
Run it again: the same run id is the same run, so nothing is fetched or loaded twice.
"""

import asyncio
import csv
import json
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NotRequired, TypedDict
from urllib.error import HTTPError
from urllib.request import urlopen

from layby import BlockingHandle, Context, RetryPolicy, Runner, TaskHandle, Workflow, task

SHOPS = ("berlin", "lagos", "lima")
PATIENT = RetryPolicy(max_attempts=6, backoff="exponential", delay=0.2, max_delay=60)
service = ""  # the shops' address, known when they have been started


class Night(TypedDict):
    """What a run is given: nothing, or which night to do (again)."""

    night: NotRequired[str]


# --- the workflow ------------------------------------------------------------------------


@task
async def begin(context: Context, handle: TaskHandle) -> None:
    """A checkpoint, so that a retry after midnight still works on the same night."""
    context["night"] = context.get("night") or await handle.checkpoint("night", tonight)


@task(retry=PATIENT, timeout=30)
async def fetch(context: Context, handle: TaskHandle, item: str) -> tuple[str, str, int]:
    """One shop: a task of the run, retried by itself. Rows stay in a file, results are small."""
    print(f"  fetch {item}, try {handle.try_number}")
    path = await asyncio.to_thread(download, item, context["night"])
    return item, path, handle.try_number


@task(dependencies=[begin])
async def fetch_all(context: Context, handle: TaskHandle) -> None:
    """How many shops there are is known tonight; two of them are asked at a time."""
    fetched = await handle.map(fetch, SHOPS, limit=2)
    context["staged"] = {shop: path for shop, path, _ in fetched}
    context["tries"] = {shop: tries for shop, _, tries in fetched}


@task(dependencies=[begin])
async def statement(context: Context, handle: TaskHandle) -> None:
    """Ordered once, whatever happens; then waited for, up to six hours, without a slot."""
    night: str = context["night"]
    path = Path(await handle.checkpoint("order", order_statement, night))
    await handle.defer_until(path.exists, poll_interval=0.2, timeout=6 * 3600)
    print(f"  {path.name} has arrived")
    context["statement"] = str(path)


@task(dependencies=[fetch_all, statement], retries=2)
def load(context: Context, handle: BlockingHandle) -> None:
    """A plain def runs in a thread: databases block. The night is replaced as a whole."""
    night: str = context["night"]
    sales: list[tuple[str, str, float]] = []
    staged: dict[str, str] = context["staged"]
    for number, (shop, path) in enumerate(staged.items(), 1):
        rows: list[dict[str, float]] = json.loads(Path(path).read_text())
        sales += [(night, shop, row["amount"]) for row in rows]
        handle.progress(number / len(staged), shop)
    with Path(context["statement"]).open(newline="") as file:
        paid = sum(float(row["amount"]) for row in csv.DictReader(file))
    with closing(sqlite3.connect("warehouse.db")) as warehouse, warehouse:
        warehouse.execute("CREATE TABLE IF NOT EXISTS sales (night, shop, amount)")
        warehouse.execute("DELETE FROM sales WHERE night = ?", (night,))
        warehouse.executemany("INSERT INTO sales VALUES (?, ?, ?)", sales)
    context.update({"rows": len(sales), "missing": sum(row[2] for row in sales) - paid})


nightly = Workflow("nightly", tasks=[begin, fetch_all, statement, load], context=Night)


async def main() -> None:
    global service  # noqa: PLW0603 - where the shops listen is known only now
    with serve() as server:
        service = f"http://127.0.0.1:{server.server_port}"
        async with Runner("sqlite:nightly.db", slots=2) as runner:
            schedule = await runner.schedule(nightly, "0 2 * * *", timezone="Europe/Berlin")
            assert schedule.next_run_at is not None
            print(f"next night: {datetime.fromtimestamp(schedule.next_run_at / 1000, UTC)}")
            night = tonight()
            run = await runner.start(nightly, {"night": night}, run_id=f"by-hand-{night}")
            result = await run.result(timeout=60)
        server.shutdown()
    print(f"{result['rows']} rows loaded, {result['missing']:g} EUR not paid yet")
    print(f"lima answered in try {result['tries']['lima']}")


def tonight() -> str:
    return datetime.now(UTC).date().isoformat()


# --- the world outside: shops that answer over HTTP, and a bank that writes a file ---------


def download(shop: str, night: str) -> str:
    staged = Path(f"staged-{shop}-{night}.json")
    try:
        with urlopen(f"{service}/{shop}/{night}", timeout=10) as answer:  # noqa: S310 - our own
            staged.write_bytes(answer.read())
    except HTTPError as error:
        with error:
            raise ConnectionError(f"{shop} says {error.code} {error.reason}") from None
    return str(staged)


def order_statement(night: str) -> str:
    """The bank writes under another name and renames, so that nobody reads half a file."""
    path = Path(f"statement-{night}.csv")

    def write() -> None:
        part = path.with_suffix(".part")
        part.write_text("payer,amount\nAda,20\nBo,35\n")
        part.rename(path)

    print("  statement ordered")
    threading.Timer(1.0, write).start()
    return str(path)


class Shops(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        shop = self.path.split("/")[1]
        Shops.asked += shop == "lima"
        if shop == "lima" and Shops.asked < 3:
            self.send_error(503, "closed")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([{"amount": 10.0}, {"amount": 12.5}]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Quiet."""


def serve() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shops)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    asyncio.run(main())
