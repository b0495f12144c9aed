"""A person decides, days later perhaps, after a restart perhaps: python examples/approval.py

The task makes a promise and waits for it. Nothing is polled: whoever knows the promise's id
settles it, and the task goes on within milliseconds. In between this example closes its Runner
and opens another one on the same file, as a deploy would.
"""

import asyncio
from tempfile import TemporaryDirectory

from layby import Context, PromiseRejected, Run, Runner, TaskHandle, Workflow, task

mailbox: dict[str, str] = {}  # what the boss has been sent: offer -> id of the promise to settle


@task
async def prepare(context: Context) -> dict[str, str]:
    print(f"prepare: an offer over {context['amount']} EUR")
    return {"offer": f"offer over {context['amount']} EUR"}


@task(dependencies=[prepare])
async def ask_the_boss(context: Context, handle: TaskHandle) -> dict[str, str]:
    decision = await handle.promise("decision")
    await handle.checkpoint("mail", send_mail, context["offer"], decision.id)
    try:
        answer = await decision
    except PromiseRejected as error:
        return {"answer": f"no, {error.message}"}
    return {"answer": f"yes, says {answer['by']}"}


def send_mail(offer: str, promise_id: str) -> None:
    """Called in a checkpoint: once it is stored, no restart sends the mail again."""
    print(f"mail to the boss: please decide on the {offer}")
    mailbox[offer] = promise_id


flow = Workflow("offer", tasks=[prepare, ask_the_boss])


async def main() -> None:
    with TemporaryDirectory() as folder:
        file = f"sqlite:{folder}/offers.db"

        async with Runner(file, slots=1) as runner:
            for amount in (100, 9_000):
                run = await runner.start(flow, {"amount": amount}, run_id=f"offer-{amount}")
                await until_it_waits(run)
        print("-- the Runner was closed while both wait: on one slot, which is free --")

        async with Runner(file, slots=1) as runner:
            runner.register(flow)  # the code for runs that were started before
            await press_the_buttons(runner)
            for amount in (100, 9_000):
                run = await runner.get(f"offer-{amount}")
                result = await run.result(timeout=30)
                tries = (await run.status()).tasks["ask_the_boss"].try_number
                print(f"{run.id}: {result['answer']} (in try {tries})")


async def press_the_buttons(runner: Runner) -> None:
    """What a web page or a chat bot does when the boss has decided."""
    await runner.resolve(mailbox["offer over 100 EUR"], {"by": "Ada"})
    await runner.reject(mailbox["offer over 9000 EUR"], "not this year")


async def until_it_waits(run: Run) -> None:
    while True:
        execution = (await run.status()).tasks["ask_the_boss"]
        if execution.sub_status == "Deferred":
            break
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main())
