"""Ids that tell the copies of one request from an equal request of somebody else."""

import secrets


def new_request_id() -> str:
    """16 characters, since the store keeps it; made once, before the request is first sent."""
    return secrets.token_urlsafe(12)
