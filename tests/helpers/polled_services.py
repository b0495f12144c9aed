"""A real HTTP service that triggers poll; a test says what it answers."""

from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Answer = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]


class PolledService:
    """`answers` are given in turn, the last one for ever."""

    def __init__(self, *answers: Answer | Any) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, path, headers and body of each."""
        self.port = 0

    def url(self, path: str = "/job", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path, dict(request.headers), body))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not callable(answer):
            return web.json_response(answer)
        made: Any = answer(request)
        return made if isinstance(made, web.StreamResponse) else await made


def status(code: int, **headers: str) -> Answer:
    """An empty answer; `Retry_After="3"` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, headers=named)
