"""Owns every reason a graph gives for what it refused."""

NO_TASK_EXECUTOR = "graph context has no task executor"
CLOSED = "graph runtime is closed"
NOBODY = "nobody listens to the error port"
FIRES_FULL = "graph runtime has too many firings waiting"
NO_LOOP = (
    "submit_run needs a running event loop for this runner: "
    "use the asyncio driver, or pass a BlockingRunner"
)
NOT_AWAITED = (
    "the task executor does not await what work returns: "
    "attach an AsyncTaskExecutor, or pass a BlockingRunner"
)


def inflight_full(channel: str, overflow: str) -> str:
    if overflow == "drop_newest":
        return f"async admission dropped newest for channel {channel}"
    return f"async admission max_inflight exceeded for channel {channel}"


def channel_full(channel: str, overflow: str, capacity: int) -> str:
    if overflow == "drop_newest":
        return f"channel {channel} dropped newest at capacity {capacity}"
    if overflow == "block":
        return f"channel {channel} would block producer at capacity {capacity}"
    return f"channel {channel} is full at capacity {capacity}"
