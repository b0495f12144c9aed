"""An order with an approval, and what is undone if it fails: python examples/compensation.py

reserve, charge, ship; a person approves large orders. `compensate` has `rule="finally"`: it runs
when the bodies of all others have ended, whether the order was shipped, failed, was cancelled or
took too long. It looks at what was really done, not at what the run believes: a charge that was
interrupted may or may not have reached the bank.
"""

import asyncio
from tempfile import TemporaryDirectory

from layby import Context, Run, RunCancelled, RunFailed, Runner, TaskHandle, Workflow, task


class Shop:
    """The world outside, which knows every order by its id: asking twice does nothing twice."""

    def __init__(self) -> None:
        self.reserved: set[str] = set()
        self.charged: set[str] = set()
        self.shipped: set[str] = set()


shop = Shop()


# --- the workflow ------------------------------------------------------------------------


@task
async def reserve(context: Context) -> None:
    shop.reserved.add(context["order"])


@task(dependencies=[reserve])
async def approve(context: Context, handle: TaskHandle) -> None:
    if context["amount"] > 1_000:
        answer = await handle.wait_for(f"approval-{context['order']}")  # no slot meanwhile
        context["approved_by"] = answer["by"]


@task(dependencies=[approve])
async def charge(context: Context) -> None:
    shop.charged.add(context["order"])  # the bank has the money from here on ...
    await asyncio.sleep(context.get("bank_seconds", 0))  # ... and answers when it likes
    context["charged"] = context["amount"]


@task(dependencies=[charge], retries=1)
async def ship(context: Context) -> None:
    if context.get("is_sold_out"):
        raise RuntimeError("sold out")
    shop.shipped.add(context["order"])


@task(rule="finally", timeout=60, retries=5)
async def compensate(context: Context) -> None:
    order, ending = context["order"], context.ending
    assert ending is not None  # always there in a task with this rule
    if order in shop.shipped:
        return
    undone: list[str] = []
    if order in shop.charged:
        shop.charged.discard(order)
        undone.append("refunded")
    if order in shop.reserved:
        shop.reserved.discard(order)
        undone.append("back in stock")
    why = ending.reason or "; ".join(ending.failed.values())
    print(f"  {order}: {', '.join(undone)} ({ending.state}: {why})")


flow = Workflow("order", tasks=[reserve, approve, charge, ship, compensate])


# --- five orders ---------------------------------------------------------------------------


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with Runner(f"sqlite:{folder}/orders.db", slots=2) as runner:

            async def order(
                name: str, amount: int, deadline: float | None = None, **more: float
            ) -> Run:
                context = {"order": name, "amount": amount, **more}
                return await runner.start(flow, context, run_id=name, deadline=deadline)

            await told(await order("book", 20))

            large = await order("piano", 9_000)
            await until_it_waits(large, "approve")
            await runner.resolve("approval-piano", {"by": "Ada"})
            await told(large)

            await told(await order("toy", 30, is_sold_out=True))

            unwanted = await order("yacht", 900_000)
            await until_it_waits(unwanted, "approve")
            await unwanted.cancel(by="Ada", reason="over budget")
            await told(unwanted)

            await told(await order("lamp", 40, deadline=0.5, bank_seconds=30))


async def told(run: Run) -> None:
    """A run that was cancelled, or is too late, is over at once; it is cleaned up afterwards."""
    try:
        result = await run.result(timeout=60)
        by = f", approved by {result['approved_by']}" if "approved_by" in result else ""
        print(f"{run.id}: shipped for {result['charged']} EUR{by}")
    except RunFailed:
        await run.cleaned_up(timeout=60)
        print(f"{run.id}: failed; {money(run)}")
    except RunCancelled as error:
        await run.cleaned_up(timeout=60)
        print(f"{run.id}: cancelled by {error.by}; {money(run)}")


def money(run: Run) -> str:
    return "we have their money!" if run.id in shop.charged else "nobody has paid for nothing"


async def until_it_waits(run: Run, task_id: str) -> None:
    while True:
        execution = (await run.status()).tasks[task_id]
        if execution.sub_status == "Deferred":
            break
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main())
