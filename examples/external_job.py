"""Start a job elsewhere, leave, and fetch its report: python examples/external_job.py

Each export is submitted in a checkpoint, so no crash or restart submits it again (only a retry
after a failure does), and then the task is deferred: nothing of it is left in memory while layby
asks the (real, local) service for its end. The process is "restarted" in between; the report is
fetched by the one that comes after it. The runs are kept in exports.db: the second time you run
this, they are done.
"""

import asyncio
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from layby import Context, Runner, TaskHandle, TriggerAccess, Workflow, task, triggers

JOB_SECONDS = 1.5
EXPORTS = ("north", "south", "west")
service = ""  # its address, known when it has been started


# --- the workflow ------------------------------------------------------------------------


@task(retries=3)
async def export(context: Context, handle: TaskHandle) -> None:
    job = await handle.checkpoint(f"submit-{handle.failures}", submit, context["region"])
    is_over = triggers.Compare("/state", "in", ["done", "failed"])
    await handle.defer(
        triggers.HttpPoll(f"{service}/jobs/{job}", until=is_over, every=0.25),
        resume=fetch,
        kwargs={"job": job},
        timeout=6 * 3600,
    )


async def fetch(context: Context, handle: TaskHandle, event: Any, job: str) -> None:
    """A try of its own, in whatever process has a slot by then."""
    if event["body"]["state"] == "failed":
        raise RuntimeError(f"{job} has failed")  # a retry begins at `export`: another job
    context["report"] = await ask("GET", f"/jobs/{job}/report")
    print(f"  {context['region']}: fetched in try {handle.try_number}")


async def submit(region: str) -> str:
    job = str(await ask("POST", f"/jobs?region={region}"))
    print(f"  {region}: submitted as {job}")
    return job


flow = Workflow("export", tasks=[export])


async def main() -> None:
    global service  # noqa: PLW0603 - where the service listens is known only now
    # A Runner on a file may poll anything; on a store that others use, only what it is told.
    access = TriggerAccess(hosts=("127.0.0.1",), allow=("127.0.0.0/8",))
    with serve() as server:
        service = f"http://127.0.0.1:{server.server_port}"
        async with Runner("sqlite:exports.db", slots=1, trigger_access=access) as runner:
            for region in EXPORTS:
                await runner.start(flow, {"region": region}, run_id=f"export-{region}")
            while await how_many_run(runner):  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.02)
        print("nobody is there: all of it is in exports.db")
        async with Runner("sqlite:exports.db", slots=1, trigger_access=access) as runner:
            runner.register(flow)
            for region in EXPORTS:
                run = await runner.get(f"export-{region}")
                print(f"{run.id}: {(await run.result(timeout=60))['report']}")
        server.shutdown()


async def how_many_run(runner: Runner) -> int:
    """Tasks that are neither done nor deferred."""
    found = [(await (await runner.get(f"export-{each}")).status()).tasks for each in EXPORTS]
    tasks = [each["export"] for each in found]
    return sum(each.status != "Completed" and each.parked_in != "store" for each in tasks)


async def ask(method: str, path: str) -> Any:
    def call() -> Any:
        with urlopen(Request(service + path, method=method), timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(call)


# --- the service: a job is done some time after it was submitted ---------------------------


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        region = self.path.partition("region=")[2]
        self.answer(f"job-{region}-{time.time() + JOB_SECONDS:.2f}")

    def do_GET(self) -> None:
        _, _, job, *what = self.path.split("/")
        _, region, done_at = job.split("-")
        if what:
            self.answer(f"the figures of the {region}")
        else:
            self.answer({"state": "done" if time.time() >= float(done_at) else "running"})

    def answer(self, content: Any) -> None:
        with suppress(ConnectionError):  # a Runner that closes hangs up in the middle of a poll
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Quiet."""


class PatientServer(ThreadingHTTPServer):
    request_queue_size = 64  # of connections that a busy machine has not looked at yet


def serve() -> ThreadingHTTPServer:
    server = PatientServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    asyncio.run(main())
