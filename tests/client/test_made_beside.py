"""What takes long to make is made beside the event loop, and undone if nobody waits for it."""

import asyncio
import threading

import pytest

from layby.client.made_beside import made_beside

PATIENCE_S = 60


class Workshop:
    """Makes one thing, when it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.is_undone = threading.Event()
        self.undone: list[str] = []

    def make(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE_S)
        return "thing"

    def undo(self, thing: str) -> None:
        self.undone.append(thing)
        self.is_undone.set()


def test_others_go_on_meanwhile() -> None:
    async def main(shop: Workshop) -> str:
        asyncio.get_running_loop().call_soon(shop.may_end.set)
        return await made_beside(shop.make, shop.undo)

    shop = Workshop()
    assert asyncio.run(main(shop)) == "thing"
    assert shop.undone == []


@pytest.mark.parametrize("is_made", [False, True])
def test_nobody_who_is_cancelled_waits_for_it_and_it_is_undone(*, is_made: bool) -> None:
    """`is_made`: at the last moment, before whoever waits has heard of it."""

    async def main(shop: Workshop) -> None:
        making = asyncio.ensure_future(made_beside(shop.make, shop.undo))
        await asyncio.to_thread(shop.has_begun.wait, PATIENCE_S)
        if is_made:
            shop.may_end.set()
            for each in threading.enumerate():
                if each.name == "layby-opening":
                    each.join(PATIENCE_S)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    shop = Workshop()
    asyncio.run(main(shop))
    shop.may_end.set()
    assert shop.is_undone.wait(PATIENCE_S)
    assert shop.undone == ["thing"]


def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    def fail() -> str:
        raise OSError("it broke")

    async def main() -> None:
        await made_beside(fail, print)

    with pytest.raises(OSError, match="it broke"):
        asyncio.run(main())
