"""Cuts a batch into transactions whose rows fit into memory, however large its promises are.

A command that names an id may load megabytes, and a batch has hundreds of commands. So where
strangers are among its callers, what is stored under their ids is weighed first: their requests
have an `Allowance`. What goes beyond it is put off, and its sender asks again when it has room
for the answers.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.engine.items import Item
from layby.errors import StoreError
from layby.store.api import Store

LOADED_CHARS: Final = 2**20
"""After the command that brings it above this, a transaction ends: others wait for it."""


class Portion(Struct):
    begun: list[Item] = field(default_factory=list)
    put_off: list[Item] = field(default_factory=list)


def portions(store: Store, batch: Sequence[Item], most: int = LOADED_CHARS) -> Iterator[Portion]:
    """In order; together they are the whole batch."""
    while batch:
        weights = _weights(store, batch, most)
        portion = Portion()
        for item, weight in zip(batch, weights, strict=False):
            is_begun = item.allowance is None or item.allowance.admits(weight)
            (portion.begun if is_begun else portion.put_off).append(item)
        rest = batch[len(weights) :]
        batch = [item for item in rest if not _is_spent(item)]  # not weighed for nothing
        portion.put_off += [item for item in rest if _is_spent(item)]
        yield portion


def _weights(store: Store, batch: Sequence[Item], most: int) -> list[int]:
    """Those of the first commands, as far as they may be loaded together: at least one.

    In a process that serves nobody else they are not looked at: its callers are one program.
    """
    if len(batch) == 1 or all(item.allowance is None for item in batch):
        return [0] * len(batch)
    named = [_ids(item) for item in batch]
    try:
        found = iter(store.weigh([each for ids in named for each in ids], most))
    except StoreError:
        return [0] * len(batch)  # the transaction fails as well, and its callers are told
    weights: list[int] = []
    for ids in named:
        each = [weight for _, weight in zip(ids, found, strict=False)]
        weights.append(sum(each))
        most -= weights[-1]
        if most < 0:
            break
    return weights


def _is_spent(item: Item) -> bool:
    return item.allowance is not None and item.allowance.left <= 0


def _ids(item: Item) -> Sequence[str]:
    footprint = Footprint()
    assert isinstance(item.request, Command)
    item.request.footprint(footprint)
    return sorted(footprint.ids)
