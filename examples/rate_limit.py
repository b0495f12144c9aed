"""A service that says "too many requests": python examples/rate_limit.py

Two answers to it. `send` reads Retry-After and sleeps that long, with its slot given back.
`send_blindly` just raises; its RetryPolicy tries again, each time after a longer pause. Neither
keeps others from working: `report` runs on the same single slot meanwhile.
"""

import asyncio
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from layby import Context, RetryPolicy, Runner, TaskHandle, Workflow, task

PER_SECOND = 2
started = time.perf_counter()


class TooManyRequests(Exception):
    def __init__(self, retry_after: float) -> None:
        super().__init__(f"try again in {retry_after:g} s")
        self.retry_after = retry_after


@task
async def send(context: Context, handle: TaskHandle) -> None:
    for number in range(1, 5):
        while True:
            try:
                await call(context["service"])
                break
            except TooManyRequests as limit:
                say(f"send: told to wait {limit.retry_after:g} s, slot given back")
                await handle.sleep(limit.retry_after)
        say(f"send: message {number} is out")


@task(
    retry=RetryPolicy(
        max_attempts=10, backoff="exponential", delay=0.2, max_delay=2, retry_on=TooManyRequests
    )
)
async def send_blindly(context: Context, handle: TaskHandle) -> None:
    say(f"send_blindly: try {handle.try_number}")
    await call(context["service"])
    say("send_blindly: message is out")


@task
async def report(context: Context, handle: TaskHandle) -> None:
    for page in range(1, 6):
        await asyncio.sleep(0.1)  # work: this one does hold the slot
        context["pages"] = page
        say(f"report: page {page}")
        await handle.yield_slot()  # and lets others have a turn


flow = Workflow("messages", tasks=[send, send_blindly, report])


async def main() -> None:
    with serve() as server:
        service = f"http://127.0.0.1:{server.server_port}"
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow, {"service": service})
            await run.result(timeout=60)
            blind = (await run.status()).tasks["send_blindly"]
        server.shutdown()
    print(f"send_blindly needed {blind.try_number} tries, {blind.failures} of them failed")


async def call(service: str) -> None:
    def request() -> Any:
        with urlopen(service, timeout=10) as answer:  # noqa: S310 - our own address
            return json.load(answer)

    try:
        await asyncio.to_thread(request)
    except HTTPError as error:
        with error:
            raise TooManyRequests(float(error.headers["Retry-After"])) from None


def say(text: str) -> None:
    print(f"{time.perf_counter() - started:4.1f} s  {text}")


# --- a service that serves two requests a second ------------------------------------------


class Service(BaseHTTPRequestHandler):
    lock = threading.Lock()
    opened_at = 0.0
    """The second being counted began then."""
    count = 0

    def do_GET(self) -> None:
        now = time.monotonic()
        with self.lock:
            if now - Service.opened_at >= 1:
                Service.opened_at, Service.count = now, 0
            Service.count += 1
            left = Service.opened_at + 1 - now
            is_too_much = Service.count > PER_SECOND
        if is_too_much:
            self.answer(429, {"ok": False}, wait=math.ceil(left * 10) / 10)
        else:
            self.answer(200, {"ok": True})

    def answer(self, status: int, content: dict[str, bool], wait: float = 0.0) -> None:
        self.send_response(status)
        self.send_header("Retry-After", f"{wait:.1f}")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Quiet."""


def serve() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    asyncio.run(main())
