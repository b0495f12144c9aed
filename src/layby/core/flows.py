"""What workers publish of their workflows, so that others can start runs without their code.

There is one row for each group and name: whoever publishes last replaces what was there. The layout
of a workflow is opaque here; the workflow layer writes and reads it.
"""

from layby.core import validate
from layby.core.draft import Draft
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Ids, Problems, Query, Sender, declare, handles
from layby.core.model import Millis, PublishedFlow
from layby.core.queries import Reader
from layby.core.replies import OK, Empty, FlowData, Reply, ok

MAX_LAYOUT_CHARS = 2**21
MAX_NAMES_TOLD = 1_000


@declare("layby.flow.publish", sender=Sender.WORKER, answer=Empty, unqueues=False)
class PublishFlow(Command, frozen=True):
    """A worker of this group has the code of this workflow."""

    group: str
    name: str
    layout: str

    def footprint(self, into: Footprint) -> None:
        """Nothing is read: the last one wins."""

    def named_ids(self) -> Ids:
        return ()

    def named_groups(self) -> Ids:
        return (self.group,)

    def problems(self) -> Problems:
        yield from validate.group(self.group)
        yield from validate.identifier(self.name, "Name of a workflow")
        yield from validate.count(len(self.layout), MAX_LAYOUT_CHARS, "characters of layout")
        yield from validate.words(layout=self.layout)
        if "\0" in self.layout:
            yield "layout must not contain NUL"


@handles(PublishFlow)
def publish(d: Draft, c: PublishFlow) -> Reply:
    d.put_flow(PublishedFlow(c.group, c.name, c.layout, d.now))
    return OK


@declare("layby.flow.find", sender=Sender.CLIENT, answer=FlowData)
class FindFlow(Query, frozen=True):
    """The layout of a workflow, if it was published, and whether a living worker has its code."""

    is_quick = True
    group: str
    name: str
    names: Int64 = 0
    """How many other names of the group to tell, in case this one is a mistake."""

    def named_ids(self) -> Ids:
        """What tasks a workflow has is not a secret from somebody who may start it."""
        return ()

    def problems(self) -> Problems:
        yield from validate.group(self.group)
        yield from validate.identifier(self.name, "Name of a workflow")
        if not 0 <= self.names <= MAX_NAMES_TOLD:
            yield f"names must be between 0 and {MAX_NAMES_TOLD}"

    def read(self, reader: Reader, _: Millis, /) -> Reply:
        return ok(reader.find_flow(self))
