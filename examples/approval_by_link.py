"""A person decides by a link in a mail: python examples/approval_by_link.py

The task asks for an approval and sends its link in a checkpoint, so no restart sends the mail
again. Opening the link only shows the question: programs that check mail for viruses open every
link. Sending the form answers it. This example has a server of its own, mails into a list, and
plays the scanner and the boss, who clicks twice.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from layby import Context, DeferTimeout, Runner, TaskHandle, Workflow, task
from layby.server.server import Server
from layby.server.server_config import load

outbox: list[str] = []


@dataclass
class Discount:
    percent: int
    remark: str = ""


@task
async def ask_the_boss(context: Context, handle: TaskHandle) -> dict[str, str]:
    approval = handle.approval(
        f"A discount for {context['customer']}?", Discount, timeout=2 * 24 * 3600
    )

    async def send_mail() -> None:
        outbox.append(f"To: boss@example.org\n\nPlease decide: {await approval.url()}")

    await handle.checkpoint("mail", send_mail)
    try:
        answer = await approval  # for days, without a slot
    except DeferTimeout:
        return {"offer": "nobody decided: no discount"}
    if not answer:
        return {"offer": f"no discount: {answer.by} said {answer.reason!r}"}
    return {"offer": f"{answer.value.percent} % discount, granted by {answer.by}"}


flow = Workflow("discount", tasks=[ask_the_boss])


async def main() -> None:
    with TemporaryDirectory() as folder:
        database = f"sqlite:{Path(folder, 'layby.db')}"
        server = Server(load({"db": database, "server.port": 0}))  # as `layby serve` runs
        await server.start()
        try:
            async with Runner(server.url, slots=1) as runner:
                run = await runner.start(flow, {"customer": "Ada"}, run_id="offer-7")
                while not outbox:  # noqa: ASYNC110 - a mailbox is looked at
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(play_the_others, outbox[0])
                print((await run.result(timeout=30))["offer"])
        finally:
            await server.stop()


def play_the_others(mail: str) -> None:
    link = re.findall(r"http\S+", mail)[0]
    print(f"the scanner opens the link: {opened(link)}")
    print(f"the boss fills in nonsense: {opened(link, percent='a lot')}")
    print(f"the boss says 10 %: {opened(link, percent='10')}")
    print(f"the boss clicks again: {opened(link, percent='10')}")
    print(f"somebody else says 90 %: {opened(link, percent='90')}")


def opened(link: str, percent: str | None = None) -> str:
    """What a browser shows: the status and the heading."""
    form = {"decision": "approve", "by": "the boss", "value.percent": percent or ""}
    sent = None if percent is None else urlencode(form).encode()
    try:
        with urlopen(link, sent, timeout=30) as answered:  # noqa: S310 - our own link
            status, html = answered.status, answered.read().decode()
    except HTTPError as error:
        status, html = error.code, error.read().decode()
    return f"{status} {re.findall('<h1>(.*?)</h1>', html)[0]}"


if __name__ == "__main__":
    asyncio.run(main())
