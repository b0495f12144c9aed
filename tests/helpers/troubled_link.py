"""A TCP connection that somebody meddles with: slow, cut, or open on one side only."""

import asyncio
import socket
import struct
from typing import Literal

from deploy.topology.relay import Address, Connection, Relay

Cut = Literal["reset", "silent", "near", "far"]
"""What becomes of the connections that are open:

`reset`   both ends hear that it is over
`silent`  nothing is carried any more, in either direction, and nobody hears of it
`near`    who connected hears that it is over; who was reached does not
`far`     who was reached hears that it is over; who connected does not
"""
_AT_ONCE = struct.pack("ii", 1, 0)
"""Closing sends a reset, and drops what has not arrived."""


class TroubledLink(Relay):
    """Later connections are as good as any."""

    delay_s = 0.0
    """How long all that is carried takes, in each direction."""

    def __init__(self, *targets: Address) -> None:
        super().__init__(targets)
        self._silent: set[Connection] = set()

    is_silent = False
    """Whether nothing is carried, in connections that are made later as well."""

    def cut(self, how: Cut) -> int:
        """How many there were."""
        return self.run(self._cut(how))

    async def _pass(
        self, both: Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            await super()._pass(both, source, sink)
        except OSError:
            if both not in self._silent:
                raise
            await asyncio.Event().wait()  # the other side does not hear of it

    async def carry(self, both: Connection, content: bytes, sink: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.is_silent or both in self._silent:
            await asyncio.Event().wait()
        await super().carry(both, content, sink)

    async def _cut(self, how: Cut) -> int:
        found = self.connections - self._silent
        for each in found:
            if how != "reset":
                self._silent.add(each)
            if how in ("reset", "near"):
                _reset(each.near)
            if how in ("reset", "far"):
                _reset(each.far)
        return len(found)


def _reset(writer: asyncio.StreamWriter) -> None:
    taken: socket.socket = writer.get_extra_info("socket")
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()
