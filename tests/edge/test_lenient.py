"""First messages in which a client's bytes stand where text should."""

from __future__ import annotations

import pytest
from envoy_by_messages import request
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.edge import facts
from extproc.edge.lenient import first_message
from extproc.pb.wire.v1 import ext_proc_pb2

MARK = b"MARKMARK"


def spoilt(bad: bytes) -> bytes:
    """A message whose request id is `bad`, as Envoy would write it."""
    made = request(metadata={"jwt": {"sub": "alice", "deep": {"name": "MARKMARK"}}})
    made.attributes["envoy.filters.http.ext_proc"].update({"request.id": MARK.decode()})
    raw = made.SerializeToString()
    assert len(bad) == len(MARK)
    return raw.replace(MARK, bad)


def test_a_good_message_is_read_as_it_is() -> None:
    raw = spoilt(MARK)
    assert first_message(raw) == ext_proc_pb2.ProcessingRequest.FromString(raw)


def test_what_is_no_text_is_left_out_and_the_rest_counts() -> None:
    raw = spoilt(b"\xff\xfe\x80\xff\xff\xff\xff\xff")
    with pytest.raises(DecodeError):
        ext_proc_pb2.ProcessingRequest.FromString(raw)
    message = first_message(raw)
    read = facts.read(message)
    assert (read.model, read.request_id, read.body_bytes, read.method) == ("m", "", 1000, "POST")
    claims = message.metadata_context.filter_metadata["jwt"]
    assert dict(claims) == {"sub": "alice"}  # the member that could not be read is gone, whole


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(min_size=8, max_size=8))
def test_any_bytes_in_the_place_of_text(bad: bytes) -> None:
    assert facts.read(first_message(spoilt(bad))).model == "m"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=40))
def test_what_is_no_message_is_refused_as_such(raw: bytes) -> None:
    try:
        first_message(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            ext_proc_pb2.ProcessingRequest.FromString(raw)
