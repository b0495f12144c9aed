"""CPU-bound functions in processes that can be killed: python examples/executors/process.py"""

from functools import partial

from layby.executors import ProcessTaskExecutor, ProcessTaskExecutorConfig


def count_primes(limit: int) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


def never_ends() -> None:
    while True:
        pass


def main() -> None:
    config = ProcessTaskExecutorConfig(
        max_workers=2, max_inflight=2, queue_capacity=8, task_timeout=5.0
    )
    discarded: list[tuple[int, str]] = []

    def discard(task_id: int, reason: str) -> None:
        discarded.append((task_id, reason))

    with ProcessTaskExecutor(config, on_discard=discard) as executor:
        stuck = executor.submit(never_ends)
        for limit in (1_000, 10_000, 20_000):
            executor.submit(partial(count_primes, limit), metadata={"limit": limit})
        executor.cancel(stuck.task_id)  # its process is killed and replaced
        executor.wait_for_idle()
        for done in executor.run_ready():
            print(done.metadata, done.payload)
    print("discarded:", discarded)


if __name__ == "__main__":  # processes are started anew and import this file
    main()
