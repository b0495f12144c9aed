"""Cuts a batch into transactions whose rows fit into memory, however large its promises are.

A command that names an id may load megabytes, and a batch has hundreds of commands. So where
strangers are among its callers, what is stored under their ids is weighed first: their requests
have an `Allowance`. What goes beyond it is put off, and its sender asks again when it has room
for the answers. Whatever its sender no longer waits for is put off too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct, field

from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.engine.items import Item
from layby.errors import StoreError
from layby.store.api import Store, StoreConflict

LOADED_CHARS: Final = 2**20
"""After the command that brings it above this, a transaction ends: others wait for it."""


class Portion(Struct):
    begun: list[Item] = field(default_factory=list)
    put_off: list[Item] = field(default_factory=list)
    last_chars: int = 0
    """What is stored under the ids of the last one that is begun, if that is much."""


class Scales:
    """Most batches have nothing heavy in them: finding that out is one statement for all."""

    def __init__(self, store: Store, most: int = LOADED_CHARS) -> None:
        self._store = store
        self._most = most

    def portions(self, batch: Sequence[Item]) -> Iterator[Portion]:
        """Together they are the whole batch; what each caller asks for stays in order.

        Those who ask for nothing heavy come first, in a portion of their own: in the order of
        arrival they would wait until all that came before them has been loaded.
        """
        if not any(item.allowance is not None or item.is_void for item in batch):
            if batch:
                yield Portion(begun=list(batch))
            return
        while batch:
            portion, staying = Portion(), list[Item]()
            for item in batch:
                (portion.put_off if item.is_void else staying).append(item)
            heavy = self._heavy(staying)
            staying, lights = _lights_first(heavy, staying)
            weights = [0] * lights if lights else _shared_out(heavy, staying, self._most)
            for item, weight in zip(staying, weights, strict=False):
                is_begun = item.allowance is None or item.allowance.admits(weight)
                (portion.begun if is_begun else portion.put_off).append(item)
                portion.last_chars = weight if is_begun else portion.last_chars
            rest = staying[len(weights) :]
            batch = [item for item in rest if not _is_spent(item)]  # not weighed for nothing
            portion.put_off += [item for item in rest if _is_spent(item)]
            yield portion

    def _heavy(self, batch: Sequence[Item]) -> Mapping[str, int]:
        """What is stored under these ids, and how much it is, where it is much.

        One write alone is loaded whatever it weighs. In a process that serves nobody else nothing
        is looked at: its callers are one program.
        """
        is_one_write = len(batch) == 1 and not _only_reads(batch[0])
        if is_one_write or all(item.allowance is None for item in batch):
            return {}
        # Whatever is wrong, the transaction fails as well, and its callers are told.
        with suppress(StoreError, StoreConflict):
            return self._store.weigh(_ids(batch))
        return {}


def _lights_first(heavy: Mapping[str, int], batch: list[Item]) -> tuple[list[Item], int]:
    """And how many there are, of callers that ask for nothing heavy."""
    if not heavy:
        return batch, len(batch)
    asking = {item.caller for item in batch if not heavy.keys().isdisjoint(_ids([item]))}
    lights = [item for item in batch if item.caller not in asking]
    return [*lights, *(item for item in batch if item.caller in asking)], len(lights)


def _shared_out(heavy: Mapping[str, int], batch: Sequence[Item], most: int) -> list[int]:
    """Of the first commands, as far as they may be loaded together: at least one."""
    weights: list[int] = []
    for item in batch:
        weights.append(sum(heavy.get(each, 0) for each in _ids([item])))
        most -= weights[-1]
        if most < 0:
            break
    return weights


def _only_reads(item: Item) -> bool:
    return isinstance(item.request, Command) and item.request.reads


def _is_spent(item: Item) -> bool:
    return item.allowance is not None and item.allowance.left <= 0


def _ids(items: Sequence[Item]) -> list[str]:
    footprint = Footprint()
    for item in items:
        assert isinstance(item.request, Command)
        item.request.footprint(footprint)
    return sorted(footprint.ids | footprint.beside)
