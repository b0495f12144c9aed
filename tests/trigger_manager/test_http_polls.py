"""HttpPoll against a real service: what fires it, what does not, and where it may not go."""

import gzip
import socket
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from layby import triggers
from layby.client.outbound import look_up
from layby.errors import TriggerError
from layby.trigger_manager.access_checks import AccessChecks, AccessRefused
from layby.trigger_manager.http_polls import HttpPolls, seconds_of_retry_after
from layby.trigger_manager.trigger_access import NamedSecret, TriggerAccess
from layby.wire import json_values
from tests.helpers.polled_services import PolledService, status
from tests.helpers.push_receivers import on_loop

NOW = 1_790_000_000_000
LOCAL = TriggerAccess(allow=("127.0.0.1",))
DONE = triggers.Compare("/state", "==", "done")


@pytest.fixture(autouse=True)
def _api_key(monkeypatch):
    monkeypatch.setenv("TEST_API", "t0p")


async def ask(
    trigger: triggers.HttpPoll, access: TriggerAccess = LOCAL, lookup: Any = look_up
) -> Any:
    polls = HttpPolls(AccessChecks(access, lookup))
    try:
        return await polls.ask(trigger, NOW)
    finally:
        await polls.close()


def resolving(*addresses: str) -> Any:
    """A name service that gives these, one for each lookup, the last one for ever."""
    left = list(addresses)

    def look_up(host: str) -> list[tuple[socket.AddressFamily, str]]:
        return [(socket.AF_INET, left.pop(0) if len(left) > 1 else left[0])]

    return look_up


# --- what it says ----------------------------------------------------------------------------


@on_loop
async def test_not_yet_and_then_done():
    """JSON for which `until` does not hold is not an error."""
    async with PolledService({"state": "running"}, {"state": "done", "rows": 3}) as service:
        poll = triggers.HttpPoll(service.url(), until=DONE)
        assert await ask(poll) is None
        assert await ask(poll) == {"status": 200, "body": {"state": "done", "rows": 3}}


@on_loop
async def test_what_is_sent():
    """Method, headers, JSON, and a secret by its name only."""
    access = TriggerAccess(
        allow=("127.0.0.1",),
        secrets=(NamedSecret("api", "env:TEST_API", ("127.0.0.1",)),),
    )
    async with PolledService({}) as service:
        headers = {"X-One": "1", "Authorization": triggers.SecretNamed("api", "Bearer ")}
        poll = triggers.HttpPoll(service.url(), method="POST", headers=headers, json={"q": [1]})
        assert "t0p" not in repr(poll.arguments())
        assert await ask(poll, access) == {"status": 200, "body": {}}
        [(method, _, sent, body)] = service.requests
    assert (method, body) == ("POST", b'{"q": [1]}')
    assert (sent["X-One"], sent["Authorization"]) == ("1", "Bearer t0p")


@pytest.mark.parametrize("code", [404, 409, 425, 429, 204])
def test_statuses_that_mean_not_yet(code):
    """204 is a 2xx that was not asked for."""

    @on_loop
    async def test():
        async with PolledService(status(code)) as service:
            assert await ask(triggers.HttpPoll(service.url(), status=(200,))) is None

    test()


@pytest.mark.parametrize("code", [400, 401, 403, 410, 500, 503])
def test_statuses_that_are_errors(code):
    """They are counted, and shown."""

    @on_loop
    async def test():
        async with PolledService(status(code)) as service:
            with pytest.raises(TriggerError, match=f"it answered {code}"):
                await ask(triggers.HttpPoll(service.url()))

    test()


@on_loop
async def test_any_status_can_be_what_is_waited_for():
    """A resource that is gone, for example; what is no JSON comes as text."""
    async with PolledService(lambda _: web.Response(status=410, text="it is gone")) as service:
        found = await ask(triggers.HttpPoll(service.url(), status=(404, 410)))
    assert found == {"status": 410, "body": "it is gone"}


@pytest.mark.parametrize(("code", "asked"), [(429, "7"), (503, "Mon, 21 Sep 2026 14:13:27 GMT")])
def test_retry_after_is_obeyed(code, asked):
    """As seconds or as a date."""

    @on_loop
    async def test():
        async with PolledService(status(code, Retry_After=asked)) as service:
            with pytest.raises(triggers.RetryAfter) as told:
                await ask(triggers.HttpPoll(service.url()))
        assert told.value.seconds == 7

    test()


@given(st.text(max_size=40))
def test_any_retry_after_can_be_read(text):
    """A service that writes nonsense does not stop us for long, nor make us fail."""
    assert 0 <= triggers.RetryAfter(seconds_of_retry_after(text, NOW)).seconds <= 86_400


@on_loop
async def test_an_answer_without_end_is_not_read():
    """Its size is bounded, whatever its headers say."""

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * 65_536)
        except ConnectionError:
            return answer

    async with PolledService(endless) as service:
        with pytest.raises(TriggerError, match="larger than 1048576 bytes"):
            await ask(triggers.HttpPoll(service.url()))


@on_loop
async def test_an_answer_that_is_encoded():
    """It was asked not to be: nobody can read it, so it neither fires nor waits in silence."""

    def packed(_: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})

    async with PolledService(packed) as service:
        with pytest.raises(TriggerError, match=r"encoded \(gzip\)"):
            await ask(triggers.HttpPoll(service.url()))
        assert await ask(triggers.HttpPoll(service.url(), method="HEAD")) is not None


@on_loop
async def test_numbers_that_cannot_be_stored():
    """They come as text, since nobody can change what the service says; `until` sees numbers."""
    async with PolledService({"id": 10**30, "ids": [-(10**20), 7]}) as service:
        poll = triggers.HttpPoll(service.url(), until=triggers.Compare("/id", ">", 10**29))
        answered = await ask(poll)
        assert answered["body"] == {"id": str(10**30), "ids": [str(-(10**20)), 7]}
        json_values.encode(answered)


@on_loop
async def test_nobody_answers():
    """Neither a closed port nor a silent one says more than that, and nothing of the URL."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/?key=hidden"
        with pytest.raises(TriggerError, match="no answer: ") as closed:
            await ask(triggers.HttpPoll(url))
        taken.listen()
        with pytest.raises(TriggerError, match="no answer within") as silent:
            await ask(triggers.HttpPoll(url, timeout=0.05))
    assert "hidden" not in f"{closed.value}{silent.value}"


# --- where it may go -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "host"),
    [
        (TriggerAccess(), "api.example.org"),
        (TriggerAccess(hosts=("api.example.org",)), "www.example.org"),
        (TriggerAccess(hosts=("*.example.org",)), "example.org"),
        (TriggerAccess(hosts=("*",)), "127.0.0.1"),
        (TriggerAccess(hosts=("*",)), "169.254.169.254"),
        (TriggerAccess(hosts=("*",)), "2130706433"),
        (TriggerAccess(hosts=("*",)), "[::1]"),
        (TriggerAccess(allow=("10.0.0.0/8",)), "192.168.0.1"),
    ],
)
def test_hosts_that_are_refused_before_anything_is_sent(access, host):
    """By their names, and by their numbers."""
    with pytest.raises(AccessRefused, match=r"triggers\.(hosts|allow)"):
        AccessChecks(access).check(triggers.HttpPoll(f"http://{host}/x"))


@pytest.mark.parametrize(
    ("access", "host"),
    [
        (TriggerAccess(hosts=("API.example.org",)), "api.example.org"),
        (TriggerAccess(hosts=("*.example.org",)), "a.b.example.org"),
        (TriggerAccess(hosts=("*",)), "8.8.8.8"),
        (TriggerAccess(allow=("10.0.0.0/8",)), "10.1.2.3"),
        (TriggerAccess(allow=("printer",)), "printer"),
        (TriggerAccess.everywhere(), "localhost"),
        (TriggerAccess.everywhere(), "169.254.169.254"),
    ],
)
def test_hosts_that_are_allowed(access, host):
    """A private one only where `allow` has it."""
    AccessChecks(access).check(triggers.HttpPoll(f"http://{host}/x"))


@on_loop
async def test_a_name_that_leads_to_a_private_address():
    """A host may be listed and still not lead inside."""
    access, lookup = TriggerAccess(hosts=("*",)), resolving("127.0.0.1")
    async with PolledService({}) as service:
        with pytest.raises(AccessRefused, match=r"resolves to 127\.0\.0\.1"):
            await ask(triggers.HttpPoll(service.url(host="evil.example.org")), access, lookup)
        assert service.requests == []


@on_loop
async def test_a_name_that_changes_between_check_and_connection():
    """DNS rebinding: what was looked up is what is connected to; there is no second lookup."""
    lookups: list[str] = []
    first = resolving("93.184.215.14", "127.0.0.1")

    def counted(host: str) -> Any:
        lookups.append(host)
        return first(host)

    access = TriggerAccess(hosts=("*",))
    async with PolledService({}) as service:
        with pytest.raises(TriggerError):  # the public address does not answer
            await ask(
                triggers.HttpPoll(service.url(host="a.example"), timeout=0.3), access, counted
            )
        assert (lookups, service.requests) == (["a.example"], [])


@on_loop
async def test_a_redirect_is_checked_like_the_first_address():
    """To a name that is not listed, a private address, and something that is no HTTP."""
    for goes_to in ("http://localhost/x", "http://169.254.169.254/x", "file:///etc/passwd"):
        async with PolledService(status(302, Location=goes_to)) as service:
            with pytest.raises((AccessRefused, TriggerError)):
                await ask(triggers.HttpPoll(service.url()))
            assert len(service.requests) == 1


@on_loop
async def test_redirects_are_followed_with_an_end():
    """A POST answered by 303 goes on as a GET without its body."""
    back = status(303, Location="/elsewhere")
    async with PolledService(back, {"state": "done"}) as service:
        poll = triggers.HttpPoll(service.url(), method="POST", json={"a": 1}, until=DONE)
        assert await ask(poll) is not None
        assert [(m, p, b) for m, p, _, b in service.requests] == [
            ("POST", "/job", b'{"a": 1}'),
            ("GET", "/elsewhere", b""),
        ]
    async with PolledService(back) as service:
        with pytest.raises(TriggerError, match="redirects more than 5 times"):
            await ask(triggers.HttpPoll(service.url()))


@on_loop
async def test_credentials_stay_with_their_host():
    """A redirect elsewhere goes on without the secret, and without a plain Authorization."""
    access = TriggerAccess(
        allow=("127.0.0.1", "localhost"),
        secrets=(NamedSecret("api", "env:TEST_API", ("127.0.0.1",)),),
    )
    headers = {"X-Key": triggers.SecretNamed("api"), "Authorization": "plain", "X-Other": "1"}
    async with PolledService({}) as second:
        to = status(307, Location=second.url(host="localhost"))
        async with PolledService(to) as first:
            assert await ask(triggers.HttpPoll(first.url(), headers=headers), access)
        [(_, _, sent, _)] = second.requests
    assert "X-Other" in sent
    assert not {"X-Key", "Authorization"} & set(sent)


@on_loop
async def test_a_secret_is_not_sent_to_a_host_it_is_not_for():
    """Whoever may start a task could name a host of theirs."""
    access = TriggerAccess(
        allow=("127.0.0.1",), secrets=(NamedSecret("api", "env:TEST_API", ("other",)),)
    )
    async with PolledService({}) as service:
        poll = triggers.HttpPoll(service.url(), headers={"X-Key": triggers.SecretNamed("api")})
        with pytest.raises(AccessRefused, match=r"not for 127\.0\.0\.1"):
            await ask(poll, access)
        assert service.requests == []
    with pytest.raises(AccessRefused, match="no secret named 'none'"):
        AccessChecks(access).check(
            triggers.HttpPoll("http://127.0.0.1", headers={"a": triggers.SecretNamed("none")})
        )


@on_loop
async def test_a_secret_that_does_not_fit_into_a_header(monkeypatch):
    """A line break in it would be the end of the header."""
    monkeypatch.setenv("TEST_API", "a\r\nX-Other: b")
    access = TriggerAccess(
        allow=("127.0.0.1",), secrets=(NamedSecret("api", "env:TEST_API", ("127.0.0.1",)),)
    )
    async with PolledService({}) as service:
        poll = triggers.HttpPoll(service.url(), headers={"X-Key": triggers.SecretNamed("api")})
        with pytest.raises(TriggerError, match="the secret 'api' does not fit into a header"):
            await ask(poll, access)
        assert service.requests == []
