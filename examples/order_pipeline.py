"""Five orders on two slots wait for a slow service: python examples/order_pipeline.py

Each order starts a job at a (real, local) HTTP service, waits until the job is done without
holding a slot, and fetches the report. The runs are kept in orders.db: the second time you run
this, the same ids are the same runs, and their results are read instead of made again.
"""

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from layby import Context, Runner, TaskHandle, Workflow, task

JOB_SECONDS = 1.0
service = ""  # its address, known when it has been started


# --- the workflow ------------------------------------------------------------------------


@task(retries=3)
async def submit(context: Context) -> None:
    job = await ask("POST", f"/jobs?order={context['order']}")
    context["job"] = job["id"]
    print(f"  order {context['order']}: submitted as {job['id']}")


@task(dependencies=[submit])
async def wait_for_job(context: Context, handle: TaskHandle) -> None:
    async def is_done() -> bool:
        return bool((await ask("GET", f"/jobs/{context['job']}"))["done"])

    print(f"  order {context['order']}: waiting, slot given back")
    await handle.defer_until(is_done, poll_interval=0.25, timeout=60)


@task(dependencies=[wait_for_job])
async def fetch_report(context: Context) -> dict[str, str]:
    report = await ask("GET", f"/jobs/{context['job']}/report")
    print(f"  order {context['order']}: {report['text']}")
    return {"report": report["text"]}


flow = Workflow("order", tasks=[submit, wait_for_job, fetch_report])


async def main() -> None:
    global service  # noqa: PLW0603 - where the service listens is known only now
    with serve() as server:
        service = f"http://127.0.0.1:{server.server_port}"
        started = time.perf_counter()
        async with Runner("sqlite:orders.db", slots=2) as runner:
            runs = [
                await runner.start(flow, {"order": number}, run_id=f"order-{number}")
                for number in range(1, 6)
            ]
            results = [await run.result(timeout=60) for run in runs]
        took = time.perf_counter() - started
        server.shutdown()
    for run, result in zip(runs, results, strict=True):
        print(f"{run.id}: {result['report']}")
    print(f"5 orders, each {JOB_SECONDS:g} s at the service, on 2 slots: {took:.1f} s")
    print("Run it again and see: done is done. Delete orders.db to start over.")


async def ask(method: str, path: str) -> Any:
    def call() -> Any:
        with urlopen(Request(service + path, method=method), timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(call)


# --- the service: a job is done a second after it was submitted ---------------------------


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = self.path.partition("order=")[2]
        self.answer({"id": f"job-{order}-{time.time() + JOB_SECONDS:.2f}"})

    def do_GET(self) -> None:
        _, _, job, *what = self.path.split("/")
        _, order, done_at = job.split("-")
        if what:
            self.answer({"text": f"order {order} is packed"})
        else:
            self.answer({"done": time.time() >= float(done_at)})

    def answer(self, content: dict[str, Any]) -> None:
        self.send_response(200)
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
