"""A deferrable operator of Airflow, moved over: python examples/from_airflow.py

There it was an operator in two halves, and a trigger that the triggerer runs:

    class ExportOperator(BaseOperator):
        def execute(self, context):
            job = start_job(self.table)
            self.defer(
                trigger=ExportTrigger(job, poke_interval=30),
                method_name="execute_complete",
                timeout=timedelta(hours=6),
            )

        def execute_complete(self, context, event):
            if event["status"] == "error":
                raise AirflowException(event["message"])
            return event["path"]

    class ExportTrigger(BaseTrigger):
        def serialize(self):
            return "exports.ExportTrigger", {"job": self.job, "poke_interval": ...}

        async def run(self):
            while (event := state_of(self.job)) is None:
                await asyncio.sleep(self.poke_interval)
            yield TriggerEvent(event)

        async def on_kill(self):
            stop_job(self.job)

Here the operator is a task, `execute_complete` is a function, and the trigger is a class of a few
fields, which every worker can run. `retries` are not used up by deferring, and a retry begins at
the task, as there. What differs: the job is started in a checkpoint, so a crash between its start
and the defer does not start a second one.
"""

import asyncio
import tempfile
import time
from datetime import timedelta
from typing import Any

from layby import Context, RunCancelled, RunFailed, Runner, TaskHandle, Workflow, task, triggers

# --- the trigger -------------------------------------------------------------------------


@triggers.register
class ExportTrigger(triggers.PolledTrigger, frozen=True):
    """`serialize` is gone: the fields are stored. `poke_interval` is called `every`."""

    job: str

    def poll(self) -> dict[str, str] | None:
        """In a thread, so it may block; None means not yet. For an async client: `async def`."""
        return state_of(self.job)

    async def on_cancel(self) -> None:
        """As `on_kill`: after a cancel or a timeout, never on a restart or a hand-over."""
        stop_job(self.job)


# --- the operator ------------------------------------------------------------------------


@task(retries=1)
async def export(context: Context, handle: TaskHandle) -> None:
    job = await handle.checkpoint(f"start-{handle.failures}", start_job, context["table"])
    await handle.defer(
        ExportTrigger(job, every=0.1),
        resume=execute_complete,
        timeout=timedelta(hours=6),
    )


async def execute_complete(context: Context, handle: TaskHandle, event: Any) -> None:
    print(f"  {context['table']}: {event['status']} in try {handle.try_number}")
    if event["status"] == "error":
        raise RuntimeError(event["message"])
    context["path"] = event["path"]


@task(dependencies=[export])
async def load(context: Context) -> None:
    """What was `xcom_pull` of the event there."""
    assert context.event("export")["path"] == context["path"]
    context["loaded"] = f"{context['path']} is loaded"


flow = Workflow("exports", tasks=[export, load])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runner(f"sqlite:{folder}/layby.db", slots=2) as runner:
            tables = ("orders", "flaky", "broken", "huge")
            runs = {each: await runner.start(flow, {"table": each}) for each in tables}
            for table in ("orders", "flaky"):
                print((await runs[table].result(timeout=30))["loaded"])
            try:
                await runs["broken"].result(timeout=30)
            except RunFailed as failure:
                print(f"broken: {failure}")
            while not any(job.startswith("huge") for job in jobs):  # noqa: ASYNC110 - filled by a thread
                await asyncio.sleep(0.01)
            await runs["huge"].cancel(by="ada", reason="too large")
            try:
                await runs["huge"].result()
            except RunCancelled as failure:
                print(f"huge: {failure}")
            while not stopped:  # noqa: ASYNC110 - filled by a thread
                await asyncio.sleep(0.01)
            print(f"the job itself was stopped: {stopped[0]}")


# --- the system elsewhere ----------------------------------------------------------------

jobs: dict[str, float] = {}
"""When each is done."""
stopped: list[str] = []


def start_job(table: str) -> str:
    job = f"{table}-{len(jobs) + 1}"
    jobs[job] = time.monotonic() + (3600 if table == "huge" else 0.3)
    return job


def state_of(job: str) -> dict[str, str] | None:
    if time.monotonic() < jobs[job]:
        return None
    table = job.partition("-")[0]
    tries = sum(each.startswith(table) for each in jobs)
    if table == "broken" or (table == "flaky" and tries == 1):
        return {"status": "error", "message": f"no such table: {table}"}
    return {"status": "success", "path": f"/exports/{table}.csv"}


def stop_job(job: str) -> None:
    stopped.append(job.partition("-")[0])


if __name__ == "__main__":
    asyncio.run(main())
