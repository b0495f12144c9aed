"""Plain functions in a bounded crew of threads: python examples/executors/threaded.py"""

import threading
import zlib
from functools import partial

from layby.executors import ThreadedTaskExecutor, ThreadedTaskExecutorConfig


def main() -> None:
    config = ThreadedTaskExecutorConfig(
        max_workers=2, max_inflight=2, queue_capacity=2, overflow="block"
    )
    finished = 0
    with ThreadedTaskExecutor(config) as executor:
        # Undrained records count against admission, so somebody has to drain while we submit.
        done_submitting = threading.Event()

        def drain() -> None:
            nonlocal finished
            while not (done_submitting.is_set() and executor.wait_for_idle()):
                finished += len(executor.run_ready())
            finished += len(executor.run_ready())

        drainer = threading.Thread(target=drain)
        drainer.start()
        for number in range(100):
            data = bytes([number]) * 100_000
            executor.submit_wait(partial(zlib.compress, data))  # waits for room
        done_submitting.set()
        drainer.join()
        print(f"{finished} finished, most outstanding {executor.metrics().max_outstanding_count}")


if __name__ == "__main__":
    main()
