"""Recordings that operators begin and end: settings of the section `recording`, below the folder that is configured.

Where files may be written is the configuration's to say, since an operator may start recordings and must not thereby
write anywhere. Nor does one make plain what the configuration hashes.

The end gives back to the file all that the beginning set: its settings are those of the same revision.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from extproc.admin import fields
from extproc.admin.asked import Asked, not_now
from extproc.admin.errors import invalid
from extproc.config.overlay import Overlay
from extproc.config.recording import Recording
from extproc.pb.admin.v1 import admin_pb2 as pb

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
_ENDS: Final = ".jsonl.gz"
_SECTION: Final = "recording"
_FIELDS: Final = {"file": "name", "tenants": "hash_tenants", "max_size": "max_file_bytes", "keep": "keep_files"}


def a_start(request: pb.StartRecordingRequest, settings: Recording, pools: Iterable[str], now: float) -> Asked:
    """`settings`: in force. `pools`: their names. `now`: seconds since 1970. Raises AdminError."""
    if settings.directory is None:
        raise not_now("no folder for recordings is configured: set recording.directory, in the file or by UpdateConfig")
    if settings.file is not None:
        raise not_now(f"it is recording into {settings.file} already: stop that first")
    for name in ("max_file_bytes", "keep_files"):
        if getattr(request, name) < 0:
            raise invalid(name, f"must not be negative, and is {getattr(request, name)}")
    stem = request.name.removesuffix(_ENDS) or time.strftime("traffic-%Y%m%dT%H%M%SZ", time.gmtime(now))
    if not _NAME.fullmatch(stem):
        raise invalid("name", "must be letters, digits, '.', '_' and '-', begin with a letter or digit, at most 81")
    patch: dict[str, Any] = {"file": str(Path(settings.directory) / f"{stem}{_ENDS}")}
    with contextlib.suppress(OSError):  # where nobody may look nobody may write: the service says so
        present = settings.model_copy(update=patch).present(pools)
        if present:
            raise not_now(f"there is a recording of that name already ({present[0]}): give another name")
    if request.hash_tenants and settings.tenants != "hashed":
        patch["tenants"] = "hashed"
    if request.max_file_bytes:
        patch["max_size"] = fields.size(request.max_file_bytes)
    if request.keep_files:
        patch["keep"] = request.keep_files
    return Asked({_SECTION: patch}, None, {(_SECTION, key): name for key, name in _FIELDS.items()})


def a_stop(settings: Recording, overlay: Overlay, file: dict[str, Any]) -> Asked:
    """`settings`: in force. `file`: what the file holds; where it records by itself, it is told not to. Raises
    AdminError."""
    if settings.file is None:
        raise not_now("nothing is recording")
    path = (_SECTION, "file")
    began = {each.revision for each in overlay.settings if each.path == path}
    mask = dict.fromkeys(each.path for each in overlay.settings if each.path[0] == _SECTION and each.revision in began)
    if (file.get(_SECTION) or {}).get("file") is not None or not mask:
        return Asked({_SECTION: {"file": None}}, list({path: None} | mask))
    return Asked({}, list(mask))
