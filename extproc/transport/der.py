"""As much of DER (X.690) as it takes to come to a few fields of a certificate."""

from __future__ import annotations

from collections.abc import Iterator


def only(data: bytes, tag: int) -> bytes:
    """The first value with this tag. Raises ValueError and IndexError."""
    for found in every(data, tag):
        return found
    raise ValueError(f"nothing with tag {tag:#x}")


def every(data: bytes, tag: int) -> Iterator[bytes]:
    """The values with this tag. Raises ValueError and IndexError."""
    return (content for found, content in values(data) if found == tag)


def values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of the values that stand one after the other in `data`. Raises ValueError and IndexError."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise ValueError("a value is longer than what holds it")
        yield tag, data[at : at + length]
        at += length
