"""Many requests are sent in portions, each of them together."""

import asyncio

from layby.client.many_requests import PORTION, send_all
from layby.core.commands import Command, HaltTask
from layby.core.replies import Reply


def test_portions_are_sent_together_and_one_after_the_other() -> None:
    portions: list[list[str]] = []
    open_now: list[str] = []

    async def send(command: Command) -> Reply:
        assert isinstance(command, HaltTask)
        if not open_now:
            portions.append([])
        open_now.append(command.id)
        portions[-1].append(command.id)
        await asyncio.sleep(0)  # until all of the portion have been asked for
        open_now.remove(command.id)
        return Reply(200, command.id)

    ids = [str(at) for at in range(2 * PORTION + 3)]
    replies = asyncio.run(send_all(send, [HaltTask(id=each) for each in ids]))
    assert [reply.data for reply in replies] == ids
    assert [len(each) for each in portions] == [PORTION, PORTION, 3]
    assert asyncio.run(send_all(send, [])) == []
