"""Waits for a file that another program writes: python examples/file_watch.py

The other program is real: a child process that takes a second to produce its file. It writes
under another name and renames when it is done, so that nobody reads half a file.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from layby import Context, DeferTimeout, Runner, TaskHandle, Workflow, task

WRITER = """
import pathlib, sys, time
target = pathlib.Path(sys.argv[1])
time.sleep(1)
part = target.with_suffix(".part")
part.write_text("sku,count\\nlamp,3\\nchair,5\\n")
part.rename(target)
"""


@task
async def wait_for_upload(context: Context, handle: TaskHandle) -> None:
    path = Path(context["path"])
    print(f"waiting for {path.name}; slot held: {handle.is_slot_held()}")
    await handle.defer_until(path.exists, poll_interval=0.2, timeout=30)
    print(f"{path.name} is there; slot held again: {handle.is_slot_held()}")


@task(dependencies=[wait_for_upload])
def count_stock(context: Context) -> None:
    """A plain def runs in a thread: reading files may block."""
    _, *lines = Path(context["path"]).read_text().splitlines()
    context["stock"] = sum(int(line.split(",")[1]) for line in lines)


@task
async def wait_in_vain(context: Context, handle: TaskHandle) -> None:
    try:
        await handle.defer_until(Path(context["path"]).exists, poll_interval=0.1, timeout=0.5)
    except DeferTimeout as error:
        print(f"gave up: {error}")
        context["stock"] = None


upload = Workflow("upload", tasks=[wait_for_upload, count_stock])
in_vain = Workflow("in_vain", tasks=[wait_in_vain])


async def main() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stock.csv"
        async with Runner(f"sqlite:{folder}/layby.db", slots=1) as runner:
            run = await runner.start(upload, {"path": str(path)})
            await asyncio.sleep(0.3)
            waiting_on = (await run.status()).tasks["wait_for_upload"].waiting_on
            assert waiting_on is not None
            print(f"meanwhile, its status says: {waiting_on.sentence} (asked {waiting_on.polls}x)")
            with subprocess.Popen([sys.executable, "-c", WRITER, path]):  # noqa: S603, ASYNC220
                result = await run.result(timeout=30)
            print(f"in stock: {result['stock']}")
            never = str(Path(folder) / "never.csv")
            print(f"in stock: {(await runner.execute(in_vain, {'path': never}))['stock']}")


if __name__ == "__main__":
    asyncio.run(main())
