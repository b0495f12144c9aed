"""Outbound rules as aiohttp asks for them; apart from the rules, because it takes long to load."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

from layby.client.outbound import Lookup, OutboundRefused, OutboundRules, look_up

LOOKUP_THREADS: Final = 32


class OutboundResolver(AbstractResolver):
    """For aiohttp's connector: returns only addresses it may connect to."""

    def __init__(self, rules: OutboundRules, lookup: Lookup = look_up) -> None:
        self._rules = rules
        self._lookup = lookup
        # Its own pool: a name whose server does not answer blocks a thread for half a minute.
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "layby-lookup")

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - we always ask for both
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        try:
            found = list(await loop.run_in_executor(self._threads, self._lookup, host))
        except UnicodeError as error:  # an empty label, or one above 63 characters
            raise OutboundRefused(f"{host[:100]} is not a valid host name") from error
        permitted = [each for each in found if self._rules.permits(host, each[1])]
        if not permitted:
            found_at = ", ".join(sorted({address for _, address in found})) or "nothing"
            raise OutboundRefused(f"{host} resolves to {found_at}, which is not public")
        return [_result(host, port, *each) for each in permitted]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(host: str, port: int, family: socket.AddressFamily, address: str) -> ResolveResult:
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=numeric
    )
