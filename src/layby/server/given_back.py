"""Tasks that workers take and give back at once, again and again.

SDKs give a task back when they have no such function, or cannot store its result. Told of it at
once each time, a lone worker would do nothing else, hundreds of times a second.
"""

from typing import Final

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
MOST_DOUBLINGS: Final = 10
REMEMBERED: Final = 10_000


class GivenBack:
    """How often in a row each task was given back. The oldest are forgotten."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[int, int]] = {}

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._times

    def note(self, task_id: str, version: int) -> None:
        """In a row when it was taken only once since, so that it cannot have waited meanwhile."""
        last_version, times = self._times.pop(task_id, (version, 0))
        is_in_a_row = last_version in (version, version - 1)
        self._times[task_id] = version, times + 1 if is_in_a_row else 1
        if len(self._times) > REMEMBERED:
            del self._times[next(iter(self._times))]

    def pause_before(self, task_id: str, version: int, workers: int) -> float:
        """How many seconds to wait before anybody is told; not while another worker may want it."""
        last_version, times = self._times.get(task_id, (version, 0))
        free = 2 * max(workers, 1)
        if version != last_version or times < free:
            return 0.0
        return min(FIRST_PAUSE * 2 ** min(times - free, MOST_DOUBLINGS), LONGEST_PAUSE)
