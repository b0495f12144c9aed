"""HTTP push over real sockets: what arrives, what is tried again, and what nobody may reach."""

import asyncio
import gc
import logging
import socket
import threading
import tracemalloc

import pytest

from layby.client.secret import Secret
from layby.core.model import Message, Promise
from layby.engine.outbox import Outgoing
from layby.errors import UsageError
from layby.server.push import PAUSES, Pusher, pause_after
from layby.server.server_config import PushConfig
from tests.helpers.push_receivers import (
    BREAK_OFF,
    IN_TWO,
    NONSENSE,
    PUT_OFF,
    TALK_ON,
    Receiver,
    Seen,
    on_loop,
)

HERE = ("127.0.0.1",)
LATER = 3_600.0


def execute(url, task_id="t1", version=0):
    return Outgoing(Message(task_id, "execute", url, version))


def unblock(url, promise_id="p1", value="{}"):
    promise = Promise(promise_id, promise_id, "{}", "{}", 9, 1, state="resolved", value=value)
    return Outgoing(Message(promise_id, "unblock", url), promise)


def encode(outgoing):
    """What arrives says what was sent."""
    message = outgoing.message
    value = outgoing.promise.value if outgoing.promise else ""
    return f"{message.kind} {message.id} {message.version} {value}".strip().encode()


class Pushing:
    """A pusher, and everything it tells."""

    def __init__(self, *, pauses=0.0, store=None, **options):
        self.delivered, self.dropped, self.counted, self.failures = Seen(), Seen(), Seen(), Seen()
        self.loaded = Seen()
        self._pauses = pauses
        self._store = store or {}
        self._options = options

    async def __aenter__(self):
        named = {"pause", "lookup", "resend_after", "on_delivered", "encode"}
        arguments = {key: value for key, value in self._options.items() if key in named}
        settings = {key: value for key, value in self._options.items() if key not in named}
        self.pusher = Pusher(
            PushConfig(**{"allow": HERE, **settings}),
            **{
                "encode": encode,
                "load": self._load,
                "on_delivered": lambda each: self.delivered.add(each.message.id),
                "on_dropped": lambda each: self.dropped.add(each.message.id),
                "count": lambda *what: self.counted.add(what),
                "pause": self._pause,
                **arguments,
            },
        )
        return self.pusher, self

    async def __aexit__(self, *_):
        await self.pusher.close(0)
        assert self.pusher.under_way == 0

    def _pause(self, failures):
        self.failures.add(failures)
        return self._pauses

    async def _load(self, message):
        self.loaded.add(message.id)
        return self._store.get(message.id)


# --- arriving --------------------------------------------------------------------------------


@on_loop
async def test_a_message_is_posted_as_json():
    """The body is the encoded message, and a 2xx is all it takes."""
    async with Receiver(204) as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url, version=3))
        await told.delivered.until(1)
        assert receiver.seen == ["execute t1 3"]
        assert receiver.headers[0]["Content-Type"] == "application/json"
        assert "Authorization" not in receiver.headers[0]
        assert (told.delivered, told.counted) == (["t1"], [("execute", "success")])
        assert pusher._pending == {}


@on_loop
async def test_an_unblock_takes_its_promise_along():
    """It leaves at once, so nobody asks the store."""
    async with Receiver() as receiver, Pushing() as (pusher, told):
        pusher.push(unblock(receiver.url, value="42"))
        await told.delivered.until(1)
        assert (receiver.seen, told.loaded) == (["unblock p1 0 42"], [])


@on_loop
async def test_a_server_error_is_tried_again_soon():
    """500, then success: delivered once, after pauses that grow with the failures."""
    async with Receiver(500, 503, 429, 200) as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.delivered.until(1)
        assert (len(receiver.seen), told.failures) == (4, [1, 2, 3])
        assert [status for _, status in told.counted] == ["error"] * 3 + ["success"]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410, 422])
@on_loop
async def test_an_answer_that_says_not_this_one_is_tried_again_late(status):
    """Not the end: routes are deployed and tokens are mended. But no reason to hurry."""
    async with Receiver(status, 200) as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.delivered.until(1)
        assert len(receiver.seen) == 2
        assert pause_after(told.failures[0]) >= PAUSES.longest / 2


def test_pauses_double_and_stay_apart():
    """0.2 s doubling to 30 s, each between half and all of it."""
    for failures, longest in [(1, 0.2), (2, 0.4), (3, 0.8), (8, 25.6), (9, 30), (10_000, 30)]:
        drawn = [pause_after(failures) for _ in range(200)]
        assert longest / 2 <= min(drawn) < longest * 0.6
        assert longest * 0.9 < max(drawn) <= longest


@on_loop
async def test_a_connection_broken_off_is_a_failure_like_another():
    """The receiver died over it: it is sent again."""
    async with Receiver(BREAK_OFF, 200) as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.delivered.until(1)
        assert (len(receiver.seen), told.failures) == (2, [1])


@on_loop
async def test_silence_ends_at_the_request_timeout():
    """A receiver that has the message and never answers is asked again."""
    async with (
        Receiver().hold() as receiver,
        Pushing(request_timeout=0.05) as (pusher, told),
    ):
        pusher.push(execute(receiver.url))
        await receiver.seen.until(2)
        receiver.release()
        await told.delivered.until(1)
        assert told.failures[0] == 1


@on_loop
async def test_an_answer_without_end_is_an_answer():
    """The status counts; nobody listens to the rest for ever."""
    async with Receiver(TALK_ON) as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.delivered.until(1)
        assert told.failures == []


@on_loop
async def test_a_host_that_only_puts_off_is_given_up():
    """Whatever comes before an answer is kept until it is read: it would fill the memory."""
    async with Receiver(PUT_OFF) as receiver, Pushing(pauses=LATER) as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.failures.until(1)
        assert told.counted == [("execute", "error")]


@pytest.mark.parametrize("answer", [200, IN_TWO])
@on_loop
async def test_a_connection_is_used_again(answer):
    """One host, one message after the other: one connection."""
    async with Receiver(answer) as receiver, Pushing() as (pusher, told):
        for number in range(5):
            pusher.push(execute(receiver.url, f"t{number}"))
            await told.delivered.until(number + 1)
        assert len(receiver.callers) == 1


# --- one key, one message --------------------------------------------------------------------


@on_loop
async def test_a_message_offered_again_while_it_waits_is_one_message():
    """The outbox may offer it as often as it likes."""
    async with Receiver().hold() as receiver, Pushing(concurrency=1) as (pusher, told):
        for _ in range(3):
            pusher.push(execute(receiver.url, "first"))
            pusher.push(execute(receiver.url, "second"))
        await receiver.seen.until(1)
        receiver.release()
        await told.delivered.until(2)
        assert receiver.seen == ["execute first 0", "execute second 0"]


@on_loop
async def test_a_message_that_got_no_answer_is_sent_again_when_offered():
    """Its receiver may be frozen: another one behind the same address can take it."""
    async with Receiver().hold() as receiver, Pushing(resend_after=0.0) as (pusher, told):
        pusher.push(execute(receiver.url))
        await receiver.seen.until(1)
        pusher.push(execute(receiver.url))
        await receiver.seen.until(2)
        receiver.release()
        await told.counted.until(2)
        assert told.delivered == ["t1"]


@on_loop
async def test_a_newer_message_replaces_the_one_that_waits():
    """The task has been acquired and released meanwhile: the old version would be refused."""
    async with Receiver().hold() as receiver, Pushing(concurrency=1) as (pusher, told):
        pusher.push(execute(receiver.url, "first"))
        pusher.push(execute(receiver.url, "t", version=1))
        pusher.push(execute(receiver.url, "t", version=2))
        await receiver.seen.until(1)
        receiver.release()
        await told.delivered.until(2)
        assert receiver.seen == ["execute first 0", "execute t 2"]


@on_loop
async def test_a_newer_message_ends_the_back_off_of_the_older():
    """It leaves at once, and the older one has no try left."""
    async with Receiver(500, 200) as receiver, Pushing(pauses=LATER) as (pusher, told):
        pusher.push(execute(receiver.url, version=1))
        await told.failures.until(1)
        older = pusher._pending[execute(receiver.url).key]
        pusher.push(execute(receiver.url, version=2))
        await told.delivered.until(1)
        assert receiver.seen == ["execute t1 1", "execute t1 2"]
        assert older.timer is not None
        assert older.timer.cancelled()


@on_loop
async def test_a_newer_message_does_not_wait_for_the_answer_to_the_older():
    """And that answer does not count as delivery of the newer one."""
    async with Receiver(200, 500).hold() as receiver, Pushing(pauses=LATER) as (pusher, told):
        pusher.push(execute(receiver.url, version=1))
        await receiver.seen.until(1)
        pusher.push(execute(receiver.url, version=2))
        await receiver.seen.until(2)
        receiver.release()
        await told.counted.until(2)
        assert sorted(status for _, status in told.counted) == ["error", "success"]
        assert (told.delivered, len(pusher._pending)) == ([], 1)


@on_loop
async def test_a_message_withdrawn_in_the_queue_does_not_leave():
    """The task was acquired: nobody needs to hear of it."""
    async with Receiver().hold() as receiver, Pushing(concurrency=1) as (pusher, told):
        for task_id in ("first", "stale", "last"):
            pusher.push(execute(receiver.url, task_id))
        pusher.withdraw(execute(receiver.url, "stale").key)
        await receiver.seen.until(1)
        receiver.release()
        await told.delivered.until(2)
        assert receiver.seen == ["execute first 0", "execute last 0"]


@on_loop
async def test_a_message_withdrawn_while_it_backs_off_is_not_tried_again():
    """Nothing of it is left, not even a timer."""
    async with Receiver(500) as receiver, Pushing(pauses=LATER) as (pusher, told):
        pusher.push(execute(receiver.url))
        await told.failures.until(1)
        await told.counted.until(1)
        pending = pusher._pending[execute(receiver.url).key]
        pusher.withdraw(pending.message.key)
        assert pending.timer is not None
        assert pending.timer.cancelled()
        assert pusher._pending == {}


@on_loop
async def test_a_message_withdrawn_under_way_is_left_alone_and_not_repeated():
    """Its receiver has just taken the task, and works inside that request: do not hang up."""
    async with Receiver(500).hold() as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await receiver.seen.until(1)
        pusher.withdraw(execute(receiver.url).key)
        receiver.release()
        await told.counted.until(1)
        assert (told.failures, told.delivered, len(receiver.seen)) == ([], [], 1)


@on_loop
async def test_withdrawing_what_is_unknown_is_nothing():
    """It arrived long ago, or was never pushed here."""
    async with Pushing() as (pusher, _):
        pusher.withdraw(("x", "execute", "http://x/"))


# --- many ------------------------------------------------------------------------------------


@on_loop
async def test_a_host_that_hangs_does_not_stop_another():
    """A thousand messages hang; one for somebody else arrives."""
    async with Receiver().hold() as hanging, Receiver() as other, Pushing() as (pusher, told):
        for number in range(1_000):
            pusher.push(execute(hanging.url, f"h{number}"))
        await hanging.seen.until(128)
        pusher.push(execute(other.url, "other"))
        await told.delivered.until(1)
        assert told.delivered == ["other"]
        assert hanging.most == 128
        await pusher.close(0)


@on_loop
async def test_a_burst_is_bounded_and_arrives_whole():
    """1,500 messages at once to two hosts: never more than 256 under way, and each arrives once."""
    async with Receiver() as one, Receiver() as two, Pushing() as (pusher, told):
        for number in range(1_500):
            pusher.push(execute((one if number % 2 else two).url, f"t{number}"))
            assert pusher.under_way <= 256
        await told.delivered.until(1_500)
        assert one.most + two.most <= 256
        assert len(set(one.seen) | set(two.seen)) == len(one.seen) + len(two.seen) == 1_500
        assert pusher._pending == {}
        gc.collect()
        assert list(pusher._queue._hosts) == []


@on_loop
async def test_a_queue_holds_no_bodies():
    """5,000 unblocks of 20 kB wait for a host that hangs: what they tell stays in the store."""
    async with Receiver().hold() as receiver, Pushing(concurrency=16) as (pusher, _):
        pusher.push(execute(receiver.url, "first"))
        await receiver.seen.until(1)
        tracemalloc.start()
        try:
            for number in range(5_000):
                value = f'"{number:020000}"'
                pusher.push(unblock(receiver.url, f"p{number}", value))
            held, _peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(pusher._pending) == 5_001
        assert held < 15_000_000
        await pusher.close(0)


@on_loop
async def test_an_unblock_that_had_to_wait_is_loaded_again():
    """It tells the same in the end; one whose promise is gone is dropped."""
    store = {"kept": unblock("http://x/", "kept", "42")}
    async with (
        Receiver().hold() as receiver,
        Pushing(concurrency=1, store=store) as (pusher, told),
    ):
        pusher.push(execute(receiver.url))
        pusher.push(unblock(receiver.url, "kept", "42"))
        pusher.push(unblock(receiver.url, "gone"))
        await receiver.seen.until(1)
        receiver.release()
        await told.delivered.until(2)
        await told.dropped.until(1)
        assert receiver.seen == ["execute t1 0", "unblock kept 0 42"]
        assert (told.loaded, told.dropped) == (["kept", "gone"], ["gone"])


# --- hosts out of reach ----------------------------------------------------------------------


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@on_loop
async def test_a_host_out_of_reach_is_probed_and_then_all_arrives():
    """A hundred messages for a dead host: one connection a rest, longer rests, then everything."""
    receiver = Receiver(port=free_port())
    async with Pushing(concurrency=4) as (pusher, told):
        for number in range(100):
            pusher.push(execute(receiver.url, f"t{number}"))
        await told.failures.until(6)
        assert told.failures[:6] == [1, 2, 3, 4, 5, 6]
        assert len(told.counted) <= 2 + 6
        async with receiver:
            await told.delivered.until(100)
            assert len(set(receiver.seen)) == 100


@on_loop
async def test_who_is_back_need_not_answer_first():
    """A probe that connects opens the way, even if its answer takes a worker minutes."""
    receiver = Receiver(port=free_port()).hold()
    async with Pushing() as (pusher, told):
        for number in range(100):
            pusher.push(execute(receiver.url, f"t{number}"))
        await told.failures.until(3)
        async with receiver:
            await receiver.seen.until(100)
            receiver.release()
            await told.delivered.until(100)


@on_loop
async def test_a_connection_kept_open_is_a_way_to_the_host_too():
    """It answers there, though it takes no new connections: nobody has to rest any more."""
    async with Receiver() as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url, "opens"))
        await told.delivered.until(1)
        await receiver.stop_listening()
        receiver.hold()
        pusher.push(execute(receiver.url, "holds it"))
        await receiver.seen.until(2)
        pusher.push(execute(receiver.url, "finds none"))
        await told.failures.until(1)
        host = pusher._pending[execute(receiver.url, "finds none").key].host
        receiver.release()
        await told.delivered.until(3)
        assert (host.failures, len(receiver.callers)) == (0, 1)


@on_loop
async def test_a_name_nobody_knows_is_tried_again():
    """Name servers fail for a while too; the message waits and is not dropped."""
    answers = [socket.gaierror(-2, "Name or service not known"), OSError("no network")]

    def lookup(_):
        if answers:
            raise answers.pop()
        return [(socket.AF_INET, "127.0.0.1")]

    async with Receiver() as receiver, Pushing(lookup=lookup) as (pusher, told):
        pusher.push(execute(f"http://worker.test:{receiver.port}/"))
        await told.delivered.until(1)
        assert (told.failures, told.dropped) == ([1, 2], [])


@on_loop
async def test_a_name_server_that_hangs_does_not_stop_another_host():
    """The lookup ends at the connect timeout; others are looked up beside it."""
    answer = threading.Event()

    def lookup(host):
        if host != "good.test":
            answer.wait(10)
        return [(socket.AF_INET, "127.0.0.1")]

    options = {"lookup": lookup, "connect_timeout": 0.05, "pauses": LATER}
    async with Receiver() as receiver, Pushing(**options) as (pusher, told):
        for number in range(24):
            url = f"http://hangs-{number % 12}.test:{receiver.port}/"
            pusher.push(execute(url, f"t{number}"))
        await told.counted.until(24)
        assert len(told.failures) == 12  # one rest a host, not one a message
        pusher.push(execute(f"http://good.test:{receiver.port}/", "good"))
        await told.delivered.until(1)
        assert told.delivered == ["good"]
        answer.set()


# --- who may be reached ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::ffff:127.0.0.1]", "127.1", "2130706433", "localhost", "0x7f.1"]
)
def test_this_machine_is_refused(host, caplog):
    """However it is spelled: dropped, counted, and said once with the remedy."""

    @on_loop
    async def push():
        async with Receiver() as receiver, Pushing(allow=()) as (pusher, told):
            for number in range(3):
                pusher.push(execute(f"http://{host}:{receiver.port}/", f"t{number}"))
            await told.dropped.until(3)
            assert receiver.seen == []
            assert told.counted == [("execute", "dropped")] * 3
            assert pusher._pending == {}

    push()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("execute for ")
    assert "push.allow" in said


@on_loop
async def test_what_the_owner_allows_is_reached():
    """By network, or by name wherever that leads."""
    for allow, host in [(("127.0.0.0/8",), "127.0.0.1"), (("worker.test",), "worker.test")]:
        lookup = lambda _: [(socket.AF_INET, "127.0.0.1")]  # noqa: E731 - one of two
        async with Receiver() as receiver, Pushing(allow=allow, lookup=lookup) as (pusher, told):
            pusher.push(execute(f"http://{host}:{receiver.port}/"))
            await told.delivered.until(1)


@on_loop
async def test_a_name_that_changes_its_mind_gains_nothing():
    """DNS rebinding: what was judged is connected to, and the next lookup is judged again."""
    asked = []

    def lookup(host):
        asked.append(host)
        return [(socket.AF_INET, "127.0.0.1" if len(asked) == 1 else "127.0.0.2")]

    async with (
        Receiver(host="0.0.0.0") as victim,  # listens on 127.0.0.2 too
        Receiver(host="127.0.0.2") as private,
        Pushing(lookup=lookup) as (pusher, told),
    ):
        pusher.push(execute(f"http://rebind.test:{victim.port}/", "first"))
        await told.delivered.until(1)
        assert asked == ["rebind.test"]
        pusher.push(execute(f"http://rebind.test:{private.port}/", "second"))
        await told.dropped.until(1)
        assert (told.dropped, private.seen) == (["second"], [])


@on_loop
async def test_of_two_addresses_only_the_good_one_is_connected_to():
    """A name that leads to both is reached by the one that is allowed."""
    lookup = lambda _: [(socket.AF_INET, each) for each in ("127.0.0.2", "127.0.0.1")]  # noqa: E731
    good = Receiver(port=free_port())
    async with (
        good,
        Receiver(host="127.0.0.2", port=good.port) as bad,
        Pushing(lookup=lookup) as (pusher, told),
    ):
        for number in range(5):
            pusher.push(execute(f"http://both.test:{good.port}/", f"t{number}"))
        await told.delivered.until(5)
        assert (len(good.seen), bad.seen) == (5, [])


@on_loop
async def test_a_redirect_is_not_followed():
    """It leads, with our token, to a place nobody has judged."""
    async with (
        Receiver() as elsewhere,
        Receiver(307, location=elsewhere.url) as receiver,
        Pushing(pauses=LATER) as (pusher, told),
    ):
        pusher.push(execute(receiver.url))
        await told.counted.until(1)
        assert (told.counted, elsewhere.seen) == ([("execute", "error")], [])


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "http:///x",
        "http://h:99999/",
        "http://[::1/",
        "https://]-@=[@/",
        "http://\u3002@127.0.0.1/",
    ],
)
@on_loop
async def test_an_address_that_is_no_url_is_dropped(address):
    """Nothing can be sent there, today or tomorrow."""
    async with Pushing() as (pusher, told):
        pusher.push(execute(address))
        await told.dropped.until(1)
        assert (told.dropped, told.counted) == (["t1"], [("execute", "dropped")])


@on_loop
async def test_a_name_that_cannot_be_one_is_dropped():
    """A label of 64 letters."""
    async with Pushing() as (pusher, told):
        pusher.push(execute(f"http://{'a' * 64}.test/"))
        await told.dropped.until(1)


@on_loop
async def test_nothing_is_pushed_when_it_is_off():
    """Such messages are dropped and counted, as the protocol says."""
    async with Receiver() as receiver, Pushing(enabled=False) as (pusher, told):
        pusher.push(execute(receiver.url))
        assert (told.dropped, told.counted) == (["t1"], [("execute", "dropped")])


# --- the token -------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Authorization", "X-Serverless-Authorization"])
def test_a_token_is_sent_in_the_header_and_said_nowhere(header, caplog):
    """Not even when the push fails at debug level."""
    caplog.set_level(logging.DEBUG)
    token = Secret("env:TOKEN", "s3cret-t0ken")

    @on_loop
    async def push():
        options = {"auth": "bearer", "token": token, "token_hosts": HERE, "header": header}
        async with Receiver(401, 200) as receiver, Pushing(**options) as (pusher, told):
            pusher.push(execute(receiver.url))
            await told.delivered.until(1)
            assert receiver.headers[0][header] == "Bearer s3cret-t0ken"

    push()
    assert "401" in caplog.text
    assert "s3cret" not in caplog.text


@on_loop
async def test_a_password_in_an_address_does_not_meet_the_token():
    """One header cannot carry both: the owner's token goes, and whoever named the address knows."""
    options = {"auth": "bearer", "token": Secret("env:TOKEN", "t0ken"), "token_hosts": HERE}
    async with Receiver() as receiver, Pushing(**options) as (pusher, told):
        pusher.push(execute(f"http://me:passw0rd@127.0.0.1:{receiver.port}/"))
        await told.counted.until(1)
        assert told.delivered == ["t1"]
        assert receiver.headers[0].getall("Authorization") == ["Bearer t0ken"]


def test_a_host_that_is_not_listed_gets_no_token(caplog):
    """Whoever may create a promise could collect it. One that asks for it is told of."""

    @on_loop
    async def push():
        listed, other = Receiver(), Receiver(401, 200)
        async with listed, other:
            options = {"token_hosts": (f"127.0.0.1:{listed.port}",), "auth": "bearer"}
            async with Pushing(token=Secret("env:TOKEN", "t0ken"), **options) as (pusher, told):
                pusher.push(execute(other.url, "other"))
                pusher.push(execute(listed.url, "listed"))
                await told.delivered.until(2)
            assert listed.headers[0]["Authorization"] == "Bearer t0ken"
            assert not any("t0ken" in str(headers) for headers in other.headers)
            assert len(other.headers) == 2

    push()
    assert "it answered 401, and is not in push.token_hosts" in caplog.text


@pytest.mark.parametrize("answer", [500, NONSENSE])
def test_what_an_address_keeps_secret_is_not_logged(answer, caplog):
    """Passwords and keys stand in URLs: only scheme, host and port are named."""

    @on_loop
    async def push():
        async with Receiver(answer) as receiver, Pushing(pauses=LATER) as (pusher, told):
            pusher.push(execute(f"http://me:passw0rd@127.0.0.1:{receiver.port}/k3y?sig=k3y"))
            await told.failures.until(1)

    push()
    assert "http://127.0.0.1" in caplog.text
    assert "passw0rd" not in caplog.text
    assert "k3y" not in caplog.text


@pytest.mark.parametrize("text", [None, "", "two\nlines", "schlüssel"])
def test_a_token_that_cannot_be_sent_is_refused_at_once(text):
    """Better than a header that is refused, or splits in two, at the first message."""

    @on_loop
    async def start():
        token = None if text is None else Secret("env:TOKEN", text)
        async with Pushing(auth="bearer", token=token):
            pass

    with pytest.raises(UsageError, match=r"push\.token"):
        start()


# --- trouble at home, and the end ------------------------------------------------------------


def test_a_receiver_of_news_that_raises_stops_nothing(caplog):
    """It is logged; the next message goes its way."""

    @on_loop
    async def push():
        def on_delivered(outgoing):
            told.delivered.add(outgoing.message.id)
            if outgoing.message.id == "first":
                raise ZeroDivisionError

        options = {"concurrency": 1, "on_delivered": on_delivered}
        async with Receiver() as receiver, Pushing(**options) as (pusher, told):
            pusher.push(execute(receiver.url, "first"))
            pusher.push(execute(receiver.url, "second"))
            await told.delivered.until(2)

    push()
    assert "ZeroDivisionError" in caplog.text


def test_an_error_while_encoding_is_logged_and_tried_again(caplog):
    """It is our fault, or the store's: the message is still in the outbox."""
    calls = []

    def encode_at_last(outgoing):
        calls.append(outgoing)
        if len(calls) == 1:
            raise ZeroDivisionError
        return encode(outgoing)

    @on_loop
    async def push():
        async with Receiver() as receiver, Pushing(encode=encode_at_last) as (pusher, told):
            pusher.push(execute(receiver.url))
            await told.delivered.until(1)

    push()
    assert "the push of execute for 't1' failed" in caplog.text


@on_loop
async def test_closing_waits_for_what_is_under_way():
    """It is delivered and reported; what waits is not sent, and nothing new is taken."""
    async with Receiver().hold() as receiver, Pushing(concurrency=1) as (pusher, told):
        pusher.push(execute(receiver.url, "under way"))
        pusher.push(execute(receiver.url, "waits"))
        await receiver.seen.until(1)
        closing = asyncio.create_task(pusher.close(10))
        await asyncio.sleep(0)
        pusher.push(execute(receiver.url, "too late"))
        receiver.release()
        await closing
        assert (told.delivered, len(receiver.seen)) == (["under way"], 1)
        assert (pusher._pending, told.dropped) == ({}, [])


@on_loop
async def test_closing_waits_no_longer_than_its_grace():
    """A host that hangs does not keep the server; the message is still in the outbox."""
    async with Receiver().hold() as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await receiver.seen.until(1)
        await pusher.close(0.01)
        assert (told.delivered, told.dropped, pusher.under_way) == ([], [], 0)


@on_loop
async def test_closing_leaves_no_timer_that_sends():
    """A failure during the last seconds is not repeated."""
    async with Receiver(500).hold() as receiver, Pushing() as (pusher, told):
        pusher.push(execute(receiver.url))
        await receiver.seen.until(1)
        closing = asyncio.create_task(pusher.close(10))
        await asyncio.sleep(0)
        receiver.release()
        await closing
        assert (told.failures, told.counted) == ([], [("execute", "error")])  # no pause was asked
