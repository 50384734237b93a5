"""The answer that lets a request go, written byte by byte.

It is the one message that is built for every request, and protobuf takes 20 us for it, more than for all that is read.
A serialised message is a list of fields, each a tag, a length and its bytes, so it can be put together from the inside
out. `tests/edge/test_release_answer.py` holds it against the generated classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

# Tags: field number << 3 | wire type; 2 is a length and bytes, 0 a number.
_KEY, _RAW_VALUE = b"\x0a", b"\x1a"  # HeaderValue
_HEADER, _OVERWRITE = b"\x0a", b"\x18\x02"  # HeaderValueOption, and its append_action
_SET_HEADERS, _REMOVE_HEADERS = b"\x0a", b"\x12"  # HeaderMutation
_HEADER_MUTATION = b"\x12"  # CommonResponse
_RESPONSE = b"\x0a"  # HeadersResponse
_REQUEST_HEADERS, _DYNAMIC_METADATA = b"\x0a", b"\x42"  # ProcessingResponse
_FIELDS, _ENTRY_VALUE = b"\x0a", b"\x12"  # Struct, and an entry of its map, whose key is as that of HeaderValue
_STRING, _STRUCT = b"\x1a", b"\x2a"  # Value


def release(
    headers: Mapping[str, str], address: str | None, append: str | None = None, remove: tuple[str, ...] = ()
) -> bytes:
    """A serialised ProcessingResponse to the request's headers: sets `headers` (few names, which are remembered) and
    takes `remove` out. In metadata, where no client can write, it tells Envoy the endpoint as `address`, with the ones
    to turn to after it as "ip:port,ip:port" (None: Envoy chooses), and the text to `append` to the body (None: nothing
    is said of the body)."""
    pieces: list[bytes] = []
    for name, text in headers.items():
        value = text.encode()
        pieces += (_before_value(name, len(value)), value, _OVERWRITE)
    if remove:
        pieces.append(_removed(remove))
    mutation = b"".join(pieces)
    pieces = [_before_mutation(len(mutation)), mutation]
    # Values are not remembered: of a few endpoints there are many orders. A field that is a message may come twice: a
    # reader merges them.
    if address is not None:
        value = address.encode()
        pieces += (_before_metadata("fairlane.endpoint", "address", len(value)), value)
    if append is not None:
        value = append.encode()
        pieces += (_before_metadata("fairlane.body", "append", len(value)), value)
    return b"".join(pieces)


@lru_cache(maxsize=1024)
def _before_value(name: str, size: int) -> bytes:
    """A header that is set, up to its value of `size` bytes. Names are few, and their values of few lengths."""
    raw = name.encode()
    header = _KEY + _length(len(raw)) + raw + _RAW_VALUE + _length(size)
    option = _HEADER + _length(len(header) + size) + header
    return _SET_HEADERS + _length(len(option) + size + len(_OVERWRITE)) + option


@lru_cache(maxsize=1024)
def _before_mutation(size: int) -> bytes:
    """The message up to its header mutation of `size` bytes."""
    common = _HEADER_MUTATION + _length(size)
    response = _RESPONSE + _length(len(common) + size) + common
    return _REQUEST_HEADERS + _length(len(response) + size) + response


@lru_cache(maxsize=256)
def _removed(names: tuple[str, ...]) -> bytes:
    return b"".join(_REMOVE_HEADERS + _length(len(raw)) + raw for raw in (name.encode() for name in names))


@lru_cache(maxsize=1024)
def _before_metadata(namespace: str, name: str, size: int) -> bytes:
    """One value of the metadata, up to its `size` bytes."""
    value = _before_entry(name, _STRING + _length(size), size)
    entry = _before_entry(namespace, _STRUCT + _length(len(value) + size) + value, size)
    return _DYNAMIC_METADATA + _length(len(entry) + size) + entry


def _before_entry(key: str, value: bytes, size: int) -> bytes:
    """An entry of a Struct. `value` lacks its last `size` bytes."""
    raw = key.encode()
    entry = _KEY + _length(len(raw)) + raw + _ENTRY_VALUE + _length(len(value) + size) + value
    return _FIELDS + _length(len(entry) + size) + entry


def _length(n: int) -> bytes:
    """As a varint: seven bits in each byte, the lowest first."""
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
