"""Ids that tell the copies of one request from an equal request of somebody else."""

import os
import random
from base64 import urlsafe_b64encode

_random = random.Random()  # noqa: S311 - no secret; asking the system each time costs 10 µs
os.register_at_fork(after_in_child=_random.seed)


def new_request_id() -> str:
    """16 characters, since the store keeps it; made once, before the request is first sent."""
    return urlsafe_b64encode(_random.randbytes(12)).decode()
