"""A map over many items on three workers; all of them are killed with -9, the caller's too."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from layby import Runner
from tests.helpers.cli_processes import Process, layby
from tests.helpers.places import address_of, state_of
from tests.runner import map_flows
from tests.runner.test_chaos import free_port

FLOWS = map_flows.__file__
WORKERS = ("one", "two", "three")
SLOTS = 8
LEASE_S = 2
LONG = (pytest.mark.slow, pytest.mark.timeout(900))


class Service(ThreadingTCPServer):
    """Counts who is connected at a time, and notes every visit."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visit)
        self.lock = threading.Condition()
        self.open = 0
        self.most = 0
        self.visits: list[tuple[int, int, int]] = []
        """Item, try and milliseconds since 1970."""

    def wait_for(self, items: int) -> None:
        """Until so many different ones have been here: the pace of the workers counts."""
        with self.lock:
            self.lock.wait_for(lambda: len({each[0] for each in self.visits}) >= items)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Visit(StreamRequestHandler):
    server: Service

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        item, try_number = map(int, line.split())
        with self.server.lock:
            self.server.open += 1
            self.server.most = max(self.server.most, self.server.open)
            self.server.visits.append((item, try_number, time.time_ns() // 1_000_000))
            self.server.lock.notify_all()
        try:
            self.wfile.write(b"seen\n")
            self.rfile.read()  # until it hangs up, or dies
        except OSError:
            pass
        finally:
            with self.server.lock:
                self.server.open -= 1


@contextmanager
def service() -> Iterator[Service]:
    with Service() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@contextmanager
def cluster(folder: Path, counts: Service) -> Iterator[tuple[str, dict[str, Process]]]:
    """A server on a store, and the workers by name."""
    port, file = free_port(), folder / "layby.db"
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        flags = ("--port", str(port), "--tasks-max-crashes", "1000")
        server = stack.enter_context(layby("serve", "--db", address_of(file), *flags))
        server.hear("layby serves")
        workers: dict[str, Process] = {}
        for name in WORKERS:
            flags = ("--url", url, "--lease", f"{LEASE_S}s", "--slots", str(SLOTS))
            process = layby("worker", FLOWS, *flags, SERVICE=counts.address)
            workers[name] = stack.enter_context(process)
        for each in workers.values():
            each.hear("layby works for")
        yield url, workers


async def mapped(url: str, flow, items: int, limit: int | None) -> list[int]:
    async with Runner(url, slots=0) as client:
        run = await client.start(flow, {"items": items, "limit": limit}, run_id="r")
        result = await run.result(timeout=900)
        return result.result(next(iter(flow.tasks)))


def kill_in_turn(seed: int, workers: dict[str, Process], counts: Service, items: int) -> int:
    """Kill one whenever some more items have been visited, so that each dies amid its work."""
    pick, killed = random.Random(seed), 0
    for share in range(1, 7):
        seen = items * share // 8
        counts.wait_for(seen)
        dying = workers[pick.choice(WORKERS)]
        dying.kill()
        dying.start()
        killed += 1
    return killed


@pytest.mark.parametrize(
    ("flow", "items", "limit"),
    [
        pytest.param(map_flows.flow, 400, None, id="map", marks=pytest.mark.shared),
        pytest.param(map_flows.unordered, 200, None, id="as they come", marks=pytest.mark.shared),
        pytest.param(map_flows.flow, 300, 5, id="with a limit", marks=pytest.mark.shared),
        pytest.param(map_flows.flow, 10_000, 20, id="10,000", marks=LONG),
    ],
)
def test_workers_that_are_killed_repeat_nothing_that_has_ended(tmp_path, flow, items, limit):
    """Every item is visited, at least once; none after it has ended; the results are in order."""
    with service() as counts, cluster(tmp_path, counts) as (url, workers):
        found: list[list[int]] = []
        mapping = threading.Thread(
            target=lambda: found.append(asyncio.run(mapped(url, flow, items, limit)))
        )
        mapping.start()
        killed = kill_in_turn(items, workers, counts, items)
        mapping.join()
        assert killed == 6
        assert found == [[each * each for each in range(items)]]
    (caller,) = flow.tasks
    ended = {
        int(key.rpartition(":")[2]): promise.settled_at
        for key, promise in state_of(tmp_path / "layby.db").promises.items()
        if key.startswith(f"run/r:{caller}:map/1:") and "." not in key
    }
    tries = Counter(item for item, _, _ in counts.visits)
    assert set(tries) == set(range(items)) == set(ended)
    late = [visit for visit in counts.visits if visit[2] > (ended[visit[0]] or 0) + 50]
    assert late == [], "visited again after the item had ended"
    assert limit is None or counts.most <= limit
