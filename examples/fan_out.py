"""Fan out, fan in, and what becomes of a branch that fails: python examples/fan_out.py

Tasks are ordinary objects, so a workflow can be put together by a loop. The branches run side by
side as slots allow; the task after them sees what each has put into the context.
"""

import layby
from layby import AnyTask, Context, RunFailed, TaskHandle, Workflow, task

CITIES = {"Oslo": 4, "Cairo": 29, "Lima": 19, "Delhi": 31}


def measure(city: str) -> AnyTask:
    """One branch: a task made by a function."""

    @task(id=f"measure_{city}", retries=1)
    async def measured(context: Context, handle: TaskHandle) -> dict[str, int]:
        await handle.sleep(0.3)  # all four wait at the same time, on two slots
        if city in context["broken"]:
            raise ConnectionError(f"the station of {city} does not answer")
        print(f"  {city}: {CITIES[city]} degrees")
        return {city: CITIES[city]}

    return measured


branches = [measure(city) for city in CITIES]


@task(dependencies=branches)
async def warmest(context: Context) -> None:
    context["warmest"] = max(CITIES, key=lambda city: float(context[city]))


@task(dependencies=branches, rule="all_done")
async def count(context: Context) -> None:
    """Runs also when branches have failed, and sees what the others have brought."""
    context["count"] = sum(city in context for city in CITIES)
    print(f"  {context['count']} of {len(CITIES)} stations answered")


flow = Workflow("weather", tasks=[*branches, warmest, count])


def main() -> None:
    print("all stations answer:")
    result = layby.run(flow, {"broken": []}, slots=2)  # blocks; nothing is kept afterwards
    print(f"  the warmest is {result['warmest']}")

    print("one does not:")
    try:
        layby.run(flow, {"broken": ["Lima"]}, slots=2)
    except RunFailed as failed:
        for task_id, error in failed.failed.items():
            print(f"  {task_id} failed: {error}")


if __name__ == "__main__":
    main()
