"""Questions as forms, and what browsers send."""

import pytest

from layby.core.answer_schema import FORMATS, answer_problem
from layby.server.hook_forms import fields_of, value_in


@pytest.mark.parametrize(
    ("name", "kind", "sent"),
    [
        ("date", "date", "2026-01-01"),
        ("date-time", "datetime-local", "2026-01-01T10:00"),
        ("date-time-local", "datetime-local", "2026-01-01T10:00:30.5"),
        ("date-time-offset", "text", "2026-01-01T10:00:00Z"),
        ("time", "time", "10:00"),
        ("time-local", "time", "10:00"),
        ("time-offset", "text", "10:00:00Z"),
    ],
)
def test_what_browsers_send_for_times_fits(name: str, kind: str, sent: str) -> None:
    """They leave out the seconds of a whole minute, which RFC 3339 demands."""
    assert name in FORMATS
    schema = {"type": "string", "format": name}
    assert f'type="{kind}"' in fields_of(schema, {})
    assert answer_problem(schema, value_in(schema, {"value": sent})) is None
