"""First messages in which a client's bytes stand where text should."""

from __future__ import annotations

import pytest
from envoy_by_messages import an_entry, log_message, request, tried
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.events import Unreachable
from extproc.edge import facts
from extproc.edge.lenient import log_entries, request_message
from extproc.edge.usage import read, ticket_of
from extproc.pb.wire.v1 import access_log_pb2, ext_proc_pb2

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
    assert request_message(raw) == ext_proc_pb2.ProcessingRequest.FromString(raw)


def test_what_is_no_text_is_left_out_and_the_rest_counts() -> None:
    raw = spoilt(b"\xff\xfe\x80\xff\xff\xff\xff\xff")
    with pytest.raises(DecodeError):
        ext_proc_pb2.ProcessingRequest.FromString(raw)
    message = request_message(raw)
    read = facts.read(message)
    assert (read.model, read.request_id, read.body_bytes, read.method) == ("m", "", 1000, "POST")
    claims = message.metadata_context.filter_metadata["jwt"]
    assert dict(claims) == {"sub": "alice"}  # the member that could not be read is gone, whole


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(min_size=8, max_size=8))
def test_any_bytes_in_the_place_of_text(bad: bytes) -> None:
    assert facts.read(request_message(spoilt(bad))).model == "m"


def test_an_entry_of_a_client_with_odd_bytes_is_read_all_the_same() -> None:
    """Else a client could keep its tokens from being counted."""
    good, odd = an_entry("t-1", completion_tokens=3), an_entry("t-2", completion_tokens=4)
    tried(odd, "[::1]:8000", 2)
    odd.common_properties.stream_id = MARK.decode()
    odd.common_properties.response_flags.downstream_remote_reset = True
    odd.common_properties.time_to_last_downstream_tx_byte.nanos = 5
    odd.request.request_id = odd.request.path = odd.request.user_agent = MARK.decode()
    raw = log_message(good, odd)
    assert [ticket_of(entry) for entry in log_entries(raw)] == ["t-1", "t-2"]
    spoilt = raw.replace(MARK, b"\xff\xfe\x80\xff\xff\xff\xff\xff")
    with pytest.raises(DecodeError):
        access_log_pb2.StreamAccessLogsMessage.FromString(spoilt)
    entries = log_entries(spoilt)
    assert [read(entry, "t").usage.output_tokens for entry in entries] == [3, 4]
    assert [ticket_of(entry) for entry in entries] == ["t-1", "t-2"]
    assert read(entries[1], "t", "10.0.0.1:8000").faults == (Unreachable("t"),)  # it was tried again elsewhere
    assert entries[1].response.response_code.value == 200
    assert entries[1].common_properties.response_flags.downstream_remote_reset
    assert entries[1].common_properties.time_to_last_downstream_tx_byte.nanos == 5


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=40))
def test_what_is_no_message_is_refused_as_such(raw: bytes) -> None:
    try:
        request_message(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            ext_proc_pb2.ProcessingRequest.FromString(raw)
    try:
        log_entries(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            access_log_pb2.StreamAccessLogsMessage.FromString(raw)
