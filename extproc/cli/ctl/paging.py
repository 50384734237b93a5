"""Lists that come in pages: they are read until there is enough, and told as one answer."""

from __future__ import annotations

from typing import Any

from extproc.cli.ctl.output import note
from extproc.cli.ctl.session import Session

_PAGE = 1000


def gather(session: Session, method: str, request: Any, field: str, limit: int | None = None) -> Any:
    """The answer with the first `limit` entries of `field` (None: all). `next_page_token` tells that there are more."""
    whole: Any = None
    while True:
        have = 0 if whole is None else len(getattr(whole, field))
        request.page_size = _PAGE if limit is None else min(_PAGE, limit - have)
        page = session.call(method, request)
        if whole is None:
            whole = page
        else:
            getattr(whole, field).extend(getattr(page, field))
            whole.next_page_token = page.next_page_token
        request.page_token = page.next_page_token
        if not page.next_page_token or (limit is not None and len(getattr(whole, field)) >= limit):
            return whole


def note_more(answer: Any, shown: int, option: str = "--limit") -> None:
    """Say that there are more than are shown."""
    if answer.next_page_token:
        note(f"These are {shown}, and there are more: {option}")
