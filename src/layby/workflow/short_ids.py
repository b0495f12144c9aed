"""Ids as people may type them."""

import re

from layby.workflow import plan


def short_id(promise_id: str) -> str:
    """The commands find runs and their tasks without the prefix."""
    is_ours = plan.parse_root_id(promise_id) or plan.parse_node_id(promise_id)
    return promise_id.removeprefix(plan.ROOT_PREFIX) if is_ours else promise_id


def quoted(text: str) -> str:
    """Safe to paste into a shell."""
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else "'" + text.replace("'", "'\\''") + "'"
