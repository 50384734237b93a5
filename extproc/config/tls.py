"""Certificates that a port shows and asks for: the same keys for every port."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from extproc.config.section import Section

Path = Annotated[str, Field(min_length=1, max_length=4096)]


class Tls(Section):
    """Of one port; the files are PEM. With `client_ca` a client must show a certificate of that authority."""

    certificate: Path  # the port's own, and the intermediate ones after it
    key: Path  # without a passphrase
    client_ca: Path | None = None
