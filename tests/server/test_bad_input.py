"""Bad requests in good HTTP: a clear refusal in the envelope, nothing written, nobody harmed."""

import json
import sys
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import pytest

from layby.wire.decode import KINDS, MAX_BATCH, VERSION
from tests.helpers.quiet_server import served
from tests.helpers.raw_http import HttpAnswer, Line, envelope, post
from tests.helpers.sample_requests import SAMPLES, Data
from tests.helpers.server_process import ServerProcess
from tests.helpers.spoiled_requests import at, changed, paths

MAX_BODY = 8 * 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with served(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Generator[Line]:
    """A line to a server whose time stands still, so that only requests change anything."""
    flags = ("--debug", "--log-level", "error")
    with served(tmp_path_factory.mktemp("paused"), *flags) as server, Line(server.port) as line:
        assert line.ask("debug.start", {}).status == 200
        yield line


@pytest.fixture
def line(server: ServerProcess) -> Generator[Line]:
    """Whatever a test sends, everybody else is served after it."""
    with Line(server.port) as line:
        yield line
    with Line(server.port) as other:
        assert read(other.ask("promise.get", {"id": "nobody"}), "promise.get").status == 404


def read(answer: HttpAnswer, kind: str = "unknown", corr_id: str = "c") -> HttpAnswer:
    """The answer, once its form is right (PROTOCOL 1.1)."""
    told = answer.json
    assert told.keys() == {"kind", "head", "data"}, answer
    assert told["kind"] == kind, answer
    assert told["head"] == {"corrId": corr_id, "status": answer.status, "version": VERSION}
    assert answer.status < 400 or isinstance(told["data"], str), answer
    return answer


def refused(answer: HttpAnswer, why: str, kind: str = "unknown", corr_id: str = "0") -> None:
    """With 400 and a text that begins so."""
    assert read(answer, kind, corr_id).status == 400, answer
    assert answer.json["data"].startswith(why), answer


# --- the envelope ----------------------------------------------------------------------------

HEAD = f'"head":{{"corrId":"c","version":"{VERSION}"}}'
GOOD = f'{{"kind":"promise.get",{HEAD},"data":{{"id":"x"}}}}'

NO_ENVELOPES: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \r\n ",
    "no JSON": b"kind=promise.get",
    "half of it": GOOD.encode()[:-1],
    "more behind it": GOOD.encode() + b"}",
    "two of them": GOOD.encode() * 2,
    "a list of them": f"[{GOOD}]".encode(),
    "null": b"null",
    "a number": b"7",
    "a text": json.dumps(GOOD).encode(),
    "no fields": b"{}",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "UTF-16": GOOD.encode("utf-16"),
    "zeros": b"\0" * 1000,
    "half a character": f'{{"kind":"\\ud800",{HEAD},"data":{{}}}}'.encode(),
}


@pytest.mark.parametrize("name", NO_ENVELOPES)
def test_what_is_no_envelope_is_refused(line: Line, name: str) -> None:
    """Nobody knows whom to answer, so it is `unknown` and `0`."""
    refused(line.post(NO_ENVELOPES[name]), "Invalid request envelope: ")


@pytest.mark.parametrize("wrong", [None, 7, True, [], {}, [["promise.get"]]])
def test_a_kind_that_is_no_text_is_refused(line: Line, wrong: Any) -> None:
    """The rest of the envelope can be read, and says whom to answer."""
    refused(line.ask(wrong, {"id": "x"}), "Invalid request envelope: ", corr_id="c")


@pytest.mark.parametrize("wrong", [None, 7, "c", [], {}])
def test_a_head_that_names_no_request_is_refused(line: Line, wrong: Any) -> None:
    body = msgspec.json.encode({"kind": "promise.get", "head": wrong, "data": {"id": "x"}})
    refused(line.post(body), "Invalid request envelope: ", "promise.get")


@pytest.mark.parametrize("wrong", [None, 7, 1.5, True, [], {"corrId": "c"}])
def test_a_corr_id_that_is_no_text_is_refused(line: Line, wrong: Any) -> None:
    answer = line.ask("promise.get", {"id": "x"}, corrId=wrong)
    refused(answer, "Invalid request envelope: ", "promise.get")


@pytest.mark.parametrize("head", [{"version": 20260401}, {"auth": 7}, {"resonate:debug_time": ""}])
def test_other_parts_of_the_head_have_their_types(line: Line, head: dict[str, Any]) -> None:
    answer = line.ask("promise.get", {"id": "x"}, **head)
    refused(answer, "Invalid request envelope: ", "promise.get", "c")


def test_a_missing_part_is_named(line: Line) -> None:
    for part in ("kind", "head", "data"):
        whole = json.loads(GOOD)
        del whole[part]
        kind, corr_id = whole.get("kind", "unknown"), whole.get("head", {}).get("corrId", "0")
        answer = line.post(msgspec.json.encode(whole))
        refused(answer, "Invalid request envelope: ", kind, corr_id)
        assert f"`{part}`" in answer.json["data"]


def test_the_empty_kind_is_refused(line: Line) -> None:
    refused(line.ask("", {}), "Missing or invalid 'kind' field", "", "c")


@pytest.mark.parametrize("wrong", [None, 7, "x", True, [], [{"id": "x"}]])
def test_data_that_is_no_object_is_refused(line: Line, wrong: Any) -> None:
    answer = line.ask("promise.get", wrong)
    refused(answer, "Invalid 'data' field - must be an object", "promise.get", "c")


@pytest.mark.parametrize("wrong", ["", "2026-04-02", "2026-04-01 ", "1", "latest"])
def test_only_one_version_is_spoken(line: Line, wrong: str) -> None:
    why = f"Unsupported protocol version '{wrong}', supported versions: [\"{VERSION}\"]"
    refused(line.ask("promise.get", {"id": "x"}, version=wrong), why, "promise.get", "c")


def test_problems_come_in_the_order_of_the_protocol(line: Line) -> None:
    """Envelope, kind, data, version, then what is asked for."""
    refused(line.ask(7, [], version="0"), "Invalid request envelope: ", corr_id="c")
    refused(line.ask("", [], version="0"), "Missing or invalid 'kind' field", "", "c")
    refused(line.ask("no.kind", [], version="0"), "Invalid 'data' field", "no.kind", "c")
    refused(line.ask("no.kind", {}, version="0"), "Unsupported protocol", "no.kind", "c")
    refused(line.ask("no.kind", {}), "Unknown operation: no.kind", "no.kind", "c")


@pytest.mark.parametrize(
    "kind",
    ["promise", "promise.get ", "Promise.get", "promise.get\0", "layby", "tick.fire_schedule", "é"],
)
def test_unknown_kinds_are_refused(line: Line, kind: str) -> None:
    """Also those that only the server itself may ask for."""
    refused(line.ask(kind, SAMPLES["promise.get"]("")), f"Unknown operation: {kind}", kind, "c")


def test_internal_kinds_are_no_business_of_clients(line: Line) -> None:
    for kind in ("layby.worker.check", "tick.offer_messages", "tick.expire_promises"):
        assert kind not in KINDS
        refused(line.ask(kind, {}), f"Unknown operation: {kind}", kind, "c")


@pytest.mark.parametrize("data", [{}, {"time": 1}, {"time": "now"}])
def test_debugging_that_is_off_is_refused_whatever_is_asked(line: Line, data: Data) -> None:
    """Nobody needs to know how to ask for it (PROTOCOL 2.4)."""
    for kind in ("debug.start", "debug.stop", "debug.reset", "debug.tick", "debug.snap"):
        answer = read(line.ask(kind, data), kind)
        assert (answer.status, answer.json["data"]) == (403, "Debug operations are disabled")
    refused(line.ask("debug.it", data), "Unknown operation: debug.it", "debug.it", "c")


def test_nobody_says_what_time_it_is_while_debugging_is_off(line: Line) -> None:
    """Else whoever names a late enough time ends every wait, and every lease."""
    line.ask("promise.create", {"id": "for-long", "timeoutAt": 2**52})
    late = line.ask("promise.get", {"id": "for-long"}, **{"resonate:debug_time": 2**52 + 1})
    assert late.json["data"]["promise"]["state"] == "pending"


def test_what_is_not_asked_for_is_ignored(line: Line) -> None:
    """Unknown fields, of any type, anywhere."""
    more = {"extra": [[{}]], "kind": None, "ikc": "k"}
    head = {"corrId": "c", "version": VERSION, "resonate:origin": "root", "x": {}}
    whole = {"kind": "promise.get", "head": head, "data": {"id": "x"} | more, "extra": more}
    assert read(line.post(msgspec.json.encode(whole)), "promise.get").status == 404


# --- every field of every kind ---------------------------------------------------------------


def of_other_types(value: Any) -> Iterator[Any]:
    """What can never stand there; null may mean nothing at all."""
    wrong: tuple[Any, ...] = (7, 1.5, True, "text", [], {}, [[]], {"a": {"b": []}})
    for each in wrong:
        is_number = isinstance(value, int) and type(each) is int
        if type(each) is not type(value) and not is_number:
            yield each


def test_there_is_a_sample_of_every_kind() -> None:
    assert {*SAMPLES, "layby.batch"} == KINDS.keys()


def everything(line: Line) -> Any:
    """All that is stored."""
    schedules = line.ask("schedule.search", {"limit": 1000}).json["data"]
    return line.ask("debug.snap", {}).json["data"], schedules


CALLERS_OWN = {"args", "kwargs", "context"}
"""Objects whose contents only their callers know: core refuses what is not an object."""


def test_wrong_types_are_refused_in_every_field_of_every_kind(paused: Line) -> None:
    """And nothing at all is written for them."""
    before = everything(paused)
    for kind, sample in SAMPLES.items():
        data = sample(f"{kind}/")
        for path in (each for each in paths(data) if not CALLERS_OWN.intersection(each[:-1])):
            for wrong in of_other_types(at(data, path)):
                answer = paused.ask(kind, changed(data, path, wrong))
                assert read(answer, kind).status == 400, (kind, path, wrong, answer)
                is_told = answer.json["data"].startswith("Invalid request: ")
                assert is_told or path[-1] in CALLERS_OWN, answer
    assert everything(paused) == before


def test_missing_fields_are_refused(paused: Line) -> None:
    """Each by its name, and nothing is written."""
    before = everything(paused)
    for kind, sample in SAMPLES.items():
        data = sample(f"{kind}/")
        for field in msgspec.structs.fields(KINDS[kind]):
            if field.required and field.encode_name in data:
                rest = {key: data[key] for key in data if key != field.encode_name}
                why = f"Invalid request: Object missing required field `{field.encode_name}`"
                refused(paused.ask(kind, rest), why, kind, "c")
    assert everything(paused) == before


TEXTS = ("", "\0", "a\0b", "\ufffd", "\U0010ffff" * 3, "x" * 1_025, "é" * 600, "{{.id}}", "../..")
NUMBERS = (-1, 0, -(2**63), 2**63 - 1, 2**53, 1e3, 1.0)


def test_strange_values_of_the_right_type_never_break_the_server(line: Line) -> None:
    """Refused or taken for what they are."""
    for kind, sample in SAMPLES.items():
        data = sample(f"strange/{kind}/")
        for path in paths(data):
            value = at(data, path)
            strange: tuple[Any, ...] = ()
            strange = tuple(f"{text}{kind}" if text else "" for text in TEXTS)
            if isinstance(value, int):
                strange = NUMBERS
            elif not isinstance(value, str):
                continue
            for each in strange:
                answer = read(line.ask(kind, changed(data, path, each)), kind)
                assert answer.status < 500, (kind, path, each, answer)


NINES = "9" * 30


@pytest.mark.parametrize("number", [NINES, f"-{NINES}", "9" * 5_000, "1e400", "-1e999", "1e308"])
def test_numbers_out_of_range_are_refused(line: Line, number: str) -> None:
    data = f'{{"id":"x","version":{number},"pid":"p","ttl":1}}'
    answer = line.post(f'{{"kind":"task.acquire",{HEAD},"data":{data}}}'.encode())
    refused(answer, "Invalid request: ", "task.acquire", "c")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "0x1", "+1", "01", "1.", ".5"])
def test_what_only_looks_like_a_number_is_no_json(line: Line, literal: str) -> None:
    data = f'{{"id":"x","version":{literal},"pid":"p","ttl":1}}'
    answer = line.post(f'{{"kind":"task.acquire",{HEAD},"data":{data}}}'.encode())
    assert answer.status == 400
    assert answer.json["data"].startswith("Invalid request")


def test_the_last_of_two_equal_keys_counts(line: Line) -> None:
    body = GOOD.replace('"id":"x"', '"id":7,"id":"","id":"twice"')
    assert read(line.post(body.encode()), "promise.get").status == 404
    body = GOOD.replace('"id":"x"', '"id":"twice","id":7')
    refused(line.post(body.encode()), "Invalid request: ", "promise.get", "c")


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_invalid_utf8_is_refused_wherever_it_matters(line: Line, bad: bytes) -> None:
    body = GOOD.encode()
    refused(line.post(body.replace(b'"x"', b'"' + bad + b'"')), "Invalid", "promise.get", "c")
    refused(line.post(body.replace(b'"c"', b'"' + bad + b'"')), "Invalid", "promise.get")
    refused(line.post(body.replace(b'"promise.get"', b'"' + bad + b'"')), "Invalid", corr_id="c")


def test_ids_have_a_length_and_no_nul(line: Line) -> None:
    for wrong, why in (
        ("", "Promise ID is required"),
        ("a\0b", "Promise ID must not contain NUL"),
        ("x" * 1_025, "Promise ID must not be longer"),
        ("é" * 513, "Promise ID must not be longer"),
        ("x" * 1_000_000, "Promise ID must not be longer"),
    ):
        answer = line.ask("promise.create", {"id": wrong, "timeoutAt": 1})
        refused(answer, why, "promise.create", "c")
    longest = {"id": "é" * 512, "timeoutAt": 1}
    assert read(line.ask("promise.create", longest), "promise.create").status == 200


# --- much of everything ----------------------------------------------------------------------


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
@pytest.mark.parametrize("field", ["tags", "param", "timeoutAt", "id", "unknown", "kind", "head"])
def test_deep_json_is_refused(line: Line, depth: int, brackets: str, field: str) -> None:
    """Wherever it stands, and however deep: 400 and no crash.

    Where nobody looks into it, newer Pythons pass over a thousand levels, and that is fine as well.
    """
    deep = nested(depth, '{"a":' if brackets == "{}" else "[", brackets[1])
    data = {"id": "x", "timeoutAt": 1}
    whole: Data = {"kind": "promise.create", "head": {"corrId": "c", "version": VERSION}}
    if field in whole:
        whole[field] = msgspec.Raw(deep.encode())
        whole["data"] = data
    else:
        whole["data"] = data | {field: msgspec.Raw(deep.encode())}
    answer = line.post(msgspec.json.encode(whole))
    if sys.version_info >= (3, 12) and depth == 1_000 and field in ("param", "unknown"):
        assert answer.status in (200, 400), answer
        return
    assert answer.status == 400, answer
    assert isinstance(answer.json["data"], str)


def flood(value: str) -> str:
    """Two million times the same thing."""
    return "[" + f"{value}," * 2_000_000 + "0]"


@pytest.mark.parametrize("value", ["[]", "{}", '""', "0"])
def test_millions_of_values_cost_no_memory(line: Line, value: str) -> None:
    """Nobody reads them, neither to understand the request nor to say what is wrong with it."""
    many = flood(value)
    refused(line.post(many.encode()), "Invalid request envelope: ")
    body = GOOD.replace('"id":"x"', f'"id":7,"x":{many}')
    refused(line.post(body.encode()), "Invalid request: ", "promise.get", "c")
    data = f'{{"id":"x","version":1,"action":{{"kind":"","head":{many},"data":{{}}}}}}'
    answer = line.post(f'{{"kind":"task.fulfill",{HEAD},"data":{data}}}'.encode())
    refused(answer, "Invalid request: ", "task.fulfill", "c")


def test_ten_megabytes_are_too_many(line: Line) -> None:
    """By their length, or by how many have come."""
    chunk = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for request in (post(b"x" * 10_000_000), head + chunk * 100 + b"0\r\n\r\n"):
        answer = read(line.send(request).answer(), corr_id="0")
        assert answer.status == 413
        assert answer.json["data"].startswith(f"Request body is larger than {MAX_BODY} bytes: ")


def test_a_value_has_a_size(line: Line) -> None:
    """The largest that may be stored is stored and given back, one more character is refused."""
    data: Data = {"id": "large", "timeoutAt": 2**53 - 2, "param": {"data": "x" * 4 * 2**20}}
    assert read(line.ask("promise.create", data), "promise.create").status == 200
    kept = line.ask("promise.get", {"id": "large"}).json["data"]["promise"]
    assert kept["param"] == data["param"]
    data = {"id": "larger", "timeoutAt": 1, "param": {"data": "x" * (4 * 2**20 + 1)}}
    refused(
        line.ask("promise.create", data), "param has 4,194,305 characters", "promise.create", "c"
    )
    assert line.ask("promise.get", {"id": "larger"}).status == 404


@pytest.mark.parametrize(
    ("kind", "field", "much"),
    [
        ("promise.create", "tags", {f"t{number}": "" for number in range(257)}),
        ("promise.create", "tags", {"t": "x" * 2**16}),
        ("promise.search", "tags", {f"t{number}": "" for number in range(257)}),
        ("schedule.create", "promiseTags", {f"t{number}": "" for number in range(300_000)}),
        ("layby.worker.take", "names", [f"n{number}" for number in range(400_000)]),
        ("layby.run.start", "nodes", [{"id": str(n), "name": "f"} for n in range(200_000)]),
        (
            "layby.run.start",
            "nodes",
            [
                {"id": str(n), "name": "f", "after": [str(each) for each in range(min(n, 400))]}
                for n in range(1_000)
            ],
        ),
    ],
)
def test_there_may_not_be_too_many_of_anything(
    line: Line, kind: str, field: str, much: Any
) -> None:
    """Each is a row, or a piece of a query, that would hold up everyone else."""
    data = SAMPLES[kind]("much/") | {field: much}
    assert read(line.ask(kind, data), kind).status == 400


def test_the_largest_body_is_read(line: Line) -> None:
    """Exactly the limit is a request like any other."""
    body = GOOD.replace('"id":"x"', '"id":"nobody","y":""')
    body = body.replace('""', f'"{"y" * (MAX_BODY - len(body))}"')
    assert len(body) == MAX_BODY
    assert read(line.post(body.encode()), "promise.get").status == 404


# --- batches ---------------------------------------------------------------------------------


def ask(kind: str, data: Any, corr_id: str = "i", version: str = VERSION) -> Data:
    return {"kind": kind, "head": {"corrId": corr_id, "version": version}, "data": data}


def batch(line: Line, *requests: Any) -> HttpAnswer:
    return line.ask("layby.batch", {"requests": requests})


def test_a_thousand_requests_are_a_batch(line: Line) -> None:
    """Each is answered, in its order; one more is refused before any is carried out."""
    many = [
        ask("promise.create", {"id": f"batched/{n}", "timeoutAt": 1}, str(n))
        for n in range(MAX_BATCH)
    ]
    answer = read(batch(line, *many), "layby.batch")
    assert answer.status == 200
    replies = answer.json["data"]["replies"]
    assert [each["head"]["corrId"] for each in replies] == [str(n) for n in range(MAX_BATCH)]
    assert {each["head"]["status"] for each in replies} == {200}
    more = ask("promise.create", {"id": "batched/more", "timeoutAt": 1})
    refused(batch(line, more, *many), "Invalid request: ", "layby.batch", "c")
    assert line.ask("promise.get", {"id": "batched/more"}).status == 404


def test_bad_requests_in_a_batch_harm_only_themselves(line: Line) -> None:
    good = ask("promise.create", {"id": "beside-bad", "timeoutAt": 1})
    answer = batch(
        line,
        7,
        [],
        {},
        ask("promise.get", []),
        ask("promise.get", {"id": "x"}, version="0"),
        ask("layby.batch", {"requests": []}),
        ask("no.kind", {}),
        ask("promise.get", {"id": 7}),
        good,
    )
    statuses = [each["head"]["status"] for each in answer.json["data"]["replies"]]
    assert statuses == [400] * 8 + [200]
    assert line.ask("promise.get", {"id": "beside-bad"}).status == 200


def test_what_waits_cannot_stand_in_a_batch(line: Line) -> None:
    """It would keep the others waiting."""
    take = SAMPLES["layby.worker.take"]("") | {"waitMs": 1_000}
    waiting = [ask("layby.worker.take", take), ask("layby.promise.watch", {"id": "x"})]
    replies = batch(line, *waiting).json["data"]["replies"]
    assert [each["head"]["status"] for each in replies] == [400, 400]
    assert all("a batch cannot contain" in each["data"] for each in replies)


def test_what_may_be_much_cannot_stand_in_a_batch(line: Line) -> None:
    """A thousand searches would be a thousand pages, all at once."""
    searches = [ask(kind, {}) for kind in ("promise.search", "task.search", "layby.run.list")]
    replies = batch(line, *searches).json["data"]["replies"]
    assert [each["head"]["status"] for each in replies] == [400, 400, 400]
    assert all("a batch cannot contain a search" in each["data"] for each in replies)


def test_a_batch_that_asks_for_much_is_answered_in_pieces(line: Line) -> None:
    """Up to a bound: for what goes beyond it, one has to ask again."""
    data = {"id": "megabytes", "timeoutAt": 2**53 - 2, "param": {"data": "x" * 2_000_000}}
    assert line.ask("promise.create", data).status == 200
    many = {"requests": [ask("promise.get", {"id": "megabytes"})] * 60}
    status, headers = line.send(post(envelope("layby.batch", many))).head()
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    told = b"".join(piece.replace(b"x" * 1_000, b"") for piece in line.chunks())
    replies = msgspec.json.decode(told)["data"]["replies"]
    assert [each["head"]["status"] for each in replies] == [200] * 5 + [429] * 55
    assert all(each["data"]["promise"]["id"] == "megabytes" for each in replies[:5])


@pytest.mark.parametrize("wrong", [{}, {"requests": None}, {"requests": {}}, {"requests": "x"}])
def test_a_batch_is_a_list(line: Line, wrong: Any) -> None:
    refused(line.ask("layby.batch", wrong), "Invalid request: ", "layby.batch", "c")


def test_an_empty_batch_is_answered(line: Line) -> None:
    assert batch(line).json["data"] == {"replies": []}


def test_deep_batches_are_refused(line: Line) -> None:
    inner: Any = ask("promise.get", {"id": "x"})
    for _ in range(300):
        inner = ask("layby.batch", {"requests": [inner]})
    [reply] = batch(line, inner).json["data"]["replies"]
    assert reply["head"]["status"] == 400


# --- more values than anybody needs ----------------------------------------------------------

MANY = {
    "a batch of nothing": ("layby.batch", '{"requests":[' + "{}," * 400_000 + "{}]}"),
    "tags": ("promise.create", '{"tags":{' + '"a":"",' * 400_000 + '"a":""}}'),
    "numbers": ("promise.get", '{"id":[' + "1," * 400_000 + "1]}"),
}


@pytest.mark.parametrize("name", MANY)
def test_millions_of_values_are_not_read(line: Line, name: str) -> None:
    """Reading them takes longer than others want to wait."""
    kind, data = MANY[name]
    head = '{"corrId":"c","version":"2026-04-01"}'
    answer = line.post(f'{{"kind":"{kind}","head":{head},"data":{data}}}'.encode())
    why = "Invalid request: it has more than 300,000 values: send less at once"
    refused(answer, why, kind, "c")


def test_commas_in_a_text_are_not_values(line: Line) -> None:
    data = {"id": "commas", "timeoutAt": 1, "param": {"data": ",[{" * 400_000}}
    assert line.ask("promise.create", data).status == 200
