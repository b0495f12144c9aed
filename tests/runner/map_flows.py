"""What the workers of the chaos test run: each item speaks to the service at SERVICE."""

import asyncio
import os

from layby import Workflow, task

HOST, _, PORT = os.environ.get("SERVICE", "127.0.0.1:0").partition(":")


@task
async def visits(context, handle, item):
    """The service counts who is connected; a process that dies is not any more. Who leaves waits
    until it is not counted any more: the next one may come at once.
    """
    reader, writer = await asyncio.open_connection(HOST, int(PORT))
    try:
        writer.write(f"{item} {handle.try_number}\n".encode())
        await writer.drain()
        assert await reader.readline() == b"seen\n"
        await asyncio.sleep(0.002)
        writer.write_eof()
        assert await reader.read() == b""
        return item * item
    finally:
        writer.close()


@task
async def maps(context, handle):
    return await handle.map(visits, range(context["items"]), limit=context.get("limit"))


@task
async def maps_as_they_come(context, handle):
    found = handle.map_unordered(visits, range(context["items"]), limit=context.get("limit"))
    return sorted([each async for each in found])


flow = Workflow("maps", tasks=[maps])
unordered = Workflow("maps-as-they-come", tasks=[maps_as_they_come])
