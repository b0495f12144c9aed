"""Everybody who may come to a server's gate, and what they may do there."""

from typing import Any, Final

from layby.core.replies import Reply
from layby.server.auth import FORBIDDEN
from layby.server.auth_config import ApiKey, AuthConfig, new_api_key
from tests.helpers.keys import public_pem, signed
from tests.helpers.sample_requests import GROUP, HANDING_BACK, HOLDING, NAMELESS, TAKING, UNBOUNDED

KEY, DIGEST = new_api_key()
ADMIN_KEY, _ = new_api_key()
MINE: dict[str, Any] = {"prefix": "mine/"}
GRANTS: dict[str, Any] = {"groups": [GROUP]}

CONFIG: Final = AuthConfig(
    public_key=public_pem(),
    api_keys=(
        ApiKey("ci", key_sha256=DIGEST, prefix="mine/", groups=(GROUP,)),
        ApiKey("ops", key=ADMIN_KEY, role="admin"),
    ),
)


def tokens(now: int) -> dict[str, str | None]:
    """By name; good ones for a minute from `now`, in seconds."""

    def token(which: int = 0, **claims: Any) -> str:
        return signed({"sub": "ann", "exp": now + 60} | claims, which=which)

    return {
        "no token": None,
        "an empty token": "",
        "nonsense": "sesame",
        "another key's": token(which=1, role="admin"),
        "expired": signed({"role": "admin", "exp": now}),
        "without exp": signed({"role": "admin"}),
        "a wrong api key": new_api_key()[0],
        "an api key's digest": DIGEST,
        "rights of none": token(),
        "a role of none": token(role="user", **GRANTS),
        "groups alone": token(**GRANTS),
        "a prefix": token(**MINE),
        "a prefix and its group": token(**MINE, **GRANTS),
        "a prefix and another group": token(**MINE, groups=["h"]),
        "another prefix and the group": token(prefix="other/", **GRANTS),
        "the empty prefix": token(prefix=""),
        "an admin": token(role="Admin"),
        "an admin with a prefix": token(role="ADMIN", prefix="other/"),
        "an api key": KEY,
        "an admin's api key": ADMIN_KEY,
    }


NAMES: Final = tuple(tokens(0))
REFUSED: Final = NAMES[: NAMES.index("rights of none")]
KNOWN: Final = NAMES[len(REFUSED) :]
UNABLE: Final = ("rights of none", "a role of none", "groups alone")
BOUNDED: Final = (
    "a prefix",
    "a prefix and its group",
    "a prefix and another group",
    "an api key",
)
ABLE: Final = ("the empty prefix", "an admin", "an admin with a prefix", "an admin's api key")
POLLING: Final = (
    *ABLE,
    "a prefix and its group",
    "another prefix and the group",
    "an api key",
)
"""Who may poll the group."""


def expected(name: str, kind: str) -> Reply | None:
    """The rules once more, in words of the tests; every sample names ids of `mine/` and `g`."""
    if name in ABLE:
        return None
    if kind in NAMELESS:
        return FORBIDDEN if name in UNABLE else None
    if name not in BOUNDED or kind in UNBOUNDED:
        # A stranger with the group may act for a worker process, if it knows its incarnation.
        is_worker = name == "another prefix and the group" and kind in HOLDING - HANDING_BACK
        return None if is_worker else FORBIDDEN
    needs_group = kind in TAKING | HOLDING
    if not needs_group or name in ("a prefix and its group", "an api key"):
        return None
    # Of a worker's life any group will do; of a take, and of what is published, only its own.
    is_named = kind in TAKING or kind == "layby.flow.publish"
    return None if name == "a prefix and another group" and not is_named else FORBIDDEN
