"""Reads messages also where a client's bytes have made them such as a protobuf parser refuses.

A protobuf text must be UTF-8. Envoy does not check: a client's `x-request-id` of any bytes becomes the attribute
`request.id`, and the parser refuses the whole message. Were that a fault, such a request would pass unscheduled. So the
values that cannot be read are left out, and the rest counts. It costs nothing while all is well.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from extproc.pb.wire.v1 import access_log_pb2, ext_proc_pb2, lenient_pb2


def request_message(raw: bytes) -> ext_proc_pb2.ProcessingRequest:
    """Raises DecodeError for what is no message at all."""
    try:
        return ext_proc_pb2.ProcessingRequest.FromString(raw)
    except DecodeError:
        pass
    # What it does not know, such as the headers, it keeps as it came.
    lenient = lenient_pb2.LenientProcessingRequest.FromString(raw)
    for structs in (lenient.metadata_context.filter_metadata, lenient.attributes):
        for name, struct in structs.items():
            structs[name] = _readable(struct)
    return ext_proc_pb2.ProcessingRequest.FromString(lenient.SerializeToString())


def log_entries(raw: bytes) -> list[access_log_pb2.HTTPAccessLogEntry]:
    """The entries of an access-log message, with what is read of them. Raises DecodeError for what is no message."""
    try:
        return list(access_log_pb2.StreamAccessLogsMessage.FromString(raw).http_logs.log_entry)
    except DecodeError:
        pass
    found = []
    for lenient in lenient_pb2.LenientAccessLogs.FromString(raw).http_logs.log_entry:
        entry = access_log_pb2.HTTPAccessLogEntry()
        common, told = entry.common_properties, lenient.common_properties
        common.metadata.ParseFromString(told.metadata)
        common.intermediate_log_entry = told.intermediate_log_entry
        if told.response_flags:
            common.response_flags.ParseFromString(told.response_flags)
        common.upstream_request_attempt_count = told.upstream_request_attempt_count
        if told.upstream_remote_address:
            common.upstream_remote_address.ParseFromString(told.upstream_remote_address)
        if told.time_to_last_downstream_tx_byte:
            common.time_to_last_downstream_tx_byte.ParseFromString(told.time_to_last_downstream_tx_byte)
        entry.response.ParseFromString(lenient.response)
        entry.request.request_id = lenient.request.request_id.decode("utf-8", "replace")
        for name, value in lenient.request.request_headers.items():
            entry.request.request_headers[name] = value.decode("utf-8", "replace")
        found.append(entry)
    return found


def _readable(struct: bytes) -> bytes:
    """A serialised Struct without the values that cannot be read."""
    if _reads(Struct, struct):
        return struct
    fields = lenient_pb2.LenientStruct.FromString(struct).fields
    return lenient_pb2.LenientStruct(
        fields={name: value for name, value in fields.items() if _reads(Value, value)}
    ).SerializeToString()


def _reads(kind: type[Struct] | type[Value], raw: bytes) -> bool:
    try:
        kind.FromString(raw)
    except DecodeError:
        return False
    return True
