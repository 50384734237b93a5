"""The answer that lets a request go, written byte by byte.

It is the one message that is built for every request, and protobuf takes 20 us for it, more than for all that is read.
A serialised message is a list of fields, each a tag, a length and its bytes, so it can be put together from the inside
out. `tests/edge/test_release_answer.py` holds it against the generated classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from extproc.pb.wire.v1 import ext_proc_pb2

# Tags: field number << 3 | wire type; 2 is a length and bytes, 0 a number.
_KEY, _RAW_VALUE = b"\x0a", b"\x1a"  # HeaderValue
_HEADER, _OVERWRITE = b"\x0a", b"\x18\x02"  # HeaderValueOption, and its append_action
_SET_HEADERS = b"\x0a"  # HeaderMutation
_HEADER_MUTATION = b"\x12"  # CommonResponse
_RESPONSE = b"\x0a"  # HeadersResponse
_REQUEST_HEADERS = b"\x0a"  # ProcessingResponse


def release(headers: Mapping[str, str], endpoint: str, append: str = "") -> bytes:
    """A serialised ProcessingResponse to the request's headers: sets `headers` (few names, which are remembered), and
    tells Envoy the endpoint and the text to append to the body, in metadata where no client can write."""
    pieces: list[bytes] = []
    for name, text in headers.items():
        value = text.encode()
        pieces += (_before_value(name, len(value)), value, _OVERWRITE)
    mutation = b"".join(pieces)
    return b"".join((_before_mutation(len(mutation)), mutation, _metadata(endpoint, append)))


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


@lru_cache(maxsize=4096)
def _metadata(endpoint: str, append: str) -> bytes:
    """There are few endpoints, and few priorities."""
    told = ext_proc_pb2.ProcessingResponse()
    told.dynamic_metadata.fields["fairlane.endpoint"].struct_value.fields["address"].string_value = endpoint
    if append:
        told.dynamic_metadata.fields["fairlane.body"].struct_value.fields["append"].string_value = append
    return told.SerializeToString()


def _length(n: int) -> bytes:
    """As a varint: seven bits in each byte, the lowest first."""
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
