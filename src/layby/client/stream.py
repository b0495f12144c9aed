"""Listens to a server's stream of messages and reconnects whenever it breaks off."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from layby.core.pauses import Pauses
from layby.errors import EngineStopped, LaybyError, WireError
from layby.wire import answers
from layby.wire.records import MessageRecord

logger = logging.getLogger(__name__)

PAUSES: Final = Pauses(0.05, longest=2.0)


async def listen(
    events: Callable[[], AsyncGenerator[bytes]],
    hear: Callable[[MessageRecord], None],
    opened: Callable[[], None] = lambda: None,
    closed: Callable[[], None] = lambda: None,
) -> None:
    """Runs until cancelled. `events` opens a stream, whose first event is empty."""
    pauses, logged = iter(PAUSES), ""
    while True:
        try:
            async for event in events():
                if event:
                    _read(event, hear)
                else:
                    pauses, logged = iter(PAUSES), ""
                    opened()
        except EngineStopped:
            return
        except LaybyError as failure:
            if str(failure) != logged:  # logged once, however long it lasts
                logger.warning("the stream of messages is down: %s", failure)
            logged = str(failure)
        except Exception:
            logger.exception("the stream of messages is down")
        closed()
        await asyncio.sleep(next(pauses))


def _read(event: bytes, hear: Callable[[MessageRecord], None]) -> None:
    try:
        message = answers.read_message(event)
    except WireError as error:
        logger.warning("a message was not understood: %s", error)
        return
    hear(message)
