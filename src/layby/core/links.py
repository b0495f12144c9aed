"""Links: URLs with which somebody without a token can settle one promise, once, for a while."""

from typing import TYPE_CHECKING, Final, Protocol

from layby.core import validate
from layby.core.fields import Int64
from layby.core.kinds import Ids, Problems, Sender, ServerControl, declare
from layby.core.model import Millis
from layby.core.replies import LinkData, Reply, ok, refuse

if TYPE_CHECKING:
    from layby.core.queries import Reader

NO_SERVER: Final = refuse(
    409,
    "Links are answered by a server, and there is none here: run `layby serve`, and give its "
    "URL to the Runner",
)


class LinkMaker(Protocol):
    def link(self, promise_id: str, expires_at: Millis, /) -> LinkData: ...


@declare("layby.promise.link", sender=Sender.CLIENT, answer=LinkData)
class MakeLink(ServerControl, frozen=True):
    """A link for this promise. Whoever may settle the promise may give that right away."""

    id: str
    expires_at: Int64

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        yield from validate.identifier(self.id, "Promise ID")
        if self.expires_at < 0:
            yield "expiresAt must be non-negative"

    def read(self, _reader: "Reader", _now: Millis, /) -> Reply:
        return NO_SERVER

    def control(self, controlled: LinkMaker) -> Reply:
        return ok(controlled.link(self.id, self.expires_at))
