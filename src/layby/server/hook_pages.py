"""The pages behind links: without script, and with nothing in them but the question."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec
from msgspec import Struct

from layby.core.model import Millis
from layby.core.questions import Question
from layby.server.hook_forms import fields_of

HTML: Final = b"text/html; charset=utf-8"
JSON: Final = b"application/json"
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-robots-tag", b"noindex, nofollow"),
    (
        b"content-security-policy",
        (
            b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
            b"frame-ancestors 'none'; base-uri 'none'"
        ),
    ),
)
"""No script, no frame around it, nothing from elsewhere, and no trace of the link elsewhere."""
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:3rem auto;padding:0 1rem}"
    "label{display:block;margin:1rem 0}input,select,textarea{display:block;width:100%;"
    "box-sizing:border-box;font:inherit;padding:.4rem}input[type=checkbox]{width:auto}"
    "button{font:inherit;padding:.5rem 1.5rem;margin:1rem 1rem 0 0}"
    ".wrong{border-left:4px solid #c00;padding-left:1rem}p{white-space:pre-wrap}"
)


class HookAnswer(Struct, frozen=True):
    status: int
    content_type: bytes
    body: bytes


def page(status: int, title: str, text: str, *, more: str = "") -> HookAnswer:
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>'
        f"{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(text)}</p>{more}</body></html>"
    )
    return HookAnswer(status, HTML, html.encode())


def document(status: int, **fields: object) -> HookAnswer:
    return HookAnswer(status, JSON, msgspec.json.encode(fields))


def question_page(question: Question, given: Mapping[str, str], problem: str = "") -> HookAnswer:
    """The question with a form. Only sending the form answers it; looking does not."""
    wrong = f'<p class="wrong">{escape(problem)}</p>' if problem else ""
    by, reason = escape(given.get("by", "")), escape(given.get("reason", ""))
    # A browser asks for required fields before a yes, and not before a no.
    form = (
        f'{wrong}<form method="post" autocomplete="off">{fields_of(question.schema, given)}'
        f'<label>Your name<input name="by" value="{by}" maxlength="200"></label>'
        f'<label>Reason<textarea rows=2 name="reason" maxlength="900">{reason}</textarea></label>'
        '<button name="decision" value="approve">Yes</button>'
        '<button name="decision" value="deny" formnovalidate>No</button></form>'
    )
    return page(400 if problem else 200, "An answer is needed", question.prompt, more=form)


def confirm_page() -> HookAnswer:
    """For a promise without a question."""
    button = '<form method="post"><button name="confirm" value="true">Confirm</button></form>'
    return page(
        200, "Please confirm", "Something waits for this. Confirm to let it go on.", more=button
    )


def at(instant: Millis | None) -> str:
    return datetime.fromtimestamp((instant or 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
