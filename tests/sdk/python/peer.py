"""../js/peer.mjs for the Python SDK: `python peer.py OPTIONS`, in a venv that has it."""

# ruff: noqa: T201 - it speaks by printing
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import json
import logging
import sys
import time
from datetime import timedelta

from functions import make_functions
from resonate.resonate import Resonate
from resonate.retry import Never
from resonate.types import Value


def tell(said: str, **fields: object) -> None:
    print(json.dumps({"said": said, "at": time.monotonic(), **fields}), flush=True)


class Connections(logging.Handler):
    """The SDK says only in its log that it is connected."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("SSE connection established"):
            tell("connected")


def log() -> None:
    logger = logging.getLogger("resonate")
    logger.setLevel(logging.INFO)
    complaints = logging.StreamHandler()
    complaints.setLevel(logging.WARNING)
    logger.addHandler(complaints)
    logger.addHandler(Connections())


class Peer:
    def __init__(self, options: dict) -> None:
        ttl = timedelta(milliseconds=options["ttl"]) if "ttl" in options else None
        group, pid = options.get("group"), options.get("pid")
        url, token = options.get("url"), options.get("token")
        self.resonate = Resonate(url=url, group=group, pid=pid, ttl=ttl, token=token)
        if options.get("functions"):
            for function in make_functions(tell, options.get("hangs")):
                self.resonate.register(function, retry_policy=Never())

    async def obey(self, order: dict) -> None:
        try:
            await getattr(self, order["do"])(order)
        except Exception as error:  # noqa: BLE001 - all that goes wrong is told
            tell("error", id=order.get("id"), message=str(error))

    async def ping(self, order: dict) -> None:
        tell("pong")

    async def run(self, order: dict) -> None:
        await self._follow(self.resonate.run(order["id"], order["name"], *order["args"]))

    async def rpc(self, order: dict) -> None:
        resonate = self.resonate.options(target=order["target"])
        await self._follow(resonate.rpc(order["id"], order["name"], *order["args"]))

    async def get(self, order: dict) -> None:
        await self._follow(await self.resonate.get(order["id"]))

    async def resolve(self, order: dict) -> None:
        await self.resonate.promises.resolve(order["id"], Value(data=order["value"]))

    async def reject(self, order: dict) -> None:
        value = Value(data=RuntimeError(order["message"]))
        await self.resonate.promises.reject(order["id"], value)

    async def schedule(self, order: dict) -> None:
        name, args = order["name"], tuple(order["args"])
        await self.resonate.schedule(order["id"], order["cron"], name, args)
        tell("scheduled", id=order["id"])

    async def unschedule(self, order: dict) -> None:
        await self.resonate.schedules.delete(order["id"])
        tell("unscheduled", id=order["id"])

    async def _follow(self, handle) -> None:
        promise_id = await handle.id()
        tell("created", id=promise_id)
        tell("result", id=promise_id, value=await handle.result())


async def main() -> None:
    log()
    peer = Peer(json.loads(sys.argv[1]))
    lines = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as orders:
        while line := await lines.readline():
            orders.create_task(peer.obey(json.loads(line)))


asyncio.run(main())
