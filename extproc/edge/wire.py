"""The messages on the wire: small readers and writers over the generated classes.

Two facts of Envoy shape the writers: `HeaderValue.value` is ignored, `raw_value` is what counts; and a
header that is set always overwrites, whatever `append_action` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from google.protobuf.struct_pb2 import Struct, Value

from extproc.pb.wire.v1 import base_pb2, ext_proc_pb2

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
ACCESS_LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"

Scalar = str | float | bool | None

# Each kind of message that a processor may be sent, and the field of the answer that Envoy waits for.
_CONTINUE: dict[str, bytes] = {
    "request_headers": ext_proc_pb2.ProcessingResponse(
        request_headers=ext_proc_pb2.HeadersResponse(response=ext_proc_pb2.CommonResponse())
    ).SerializeToString(),
    "response_headers": ext_proc_pb2.ProcessingResponse(
        response_headers=ext_proc_pb2.HeadersResponse(response=ext_proc_pb2.CommonResponse())
    ).SerializeToString(),
    "request_body": ext_proc_pb2.ProcessingResponse(
        request_body=ext_proc_pb2.BodyResponse(response=ext_proc_pb2.CommonResponse())
    ).SerializeToString(),
    "response_body": ext_proc_pb2.ProcessingResponse(
        response_body=ext_proc_pb2.BodyResponse(response=ext_proc_pb2.CommonResponse())
    ).SerializeToString(),
    "request_trailers": ext_proc_pb2.ProcessingResponse(
        request_trailers=ext_proc_pb2.TrailersResponse()
    ).SerializeToString(),
    "response_trailers": ext_proc_pb2.ProcessingResponse(
        response_trailers=ext_proc_pb2.TrailersResponse()
    ).SerializeToString(),
}


def go_on(kind: str) -> bytes | None:
    """The serialised answer that changes nothing; None for a kind of message that is not known."""
    return _CONTINUE.get(kind)


def headers_of(message: ext_proc_pb2.HttpHeaders) -> dict[str, str]:
    """Lower-case name to value. Of a header that comes more than once the last counts: what Envoy
    appends stands behind what the client sent."""
    return {h.key.lower(): (h.raw_value.decode("utf-8", "replace") or h.value) for h in message.headers.headers}


def scalar(fields: Mapping[str, Value], key: str) -> Scalar:
    """A scalar member of a Struct's fields; None when it is absent, null, a list or a struct."""
    if key not in fields:
        return None
    value = fields[key]
    kind = value.WhichOneof("kind")
    if kind in ("string_value", "number_value", "bool_value"):
        return cast(Scalar, getattr(value, kind))
    return None


def descend(struct: Struct, path: Iterable[str]) -> Scalar:
    """The scalar at `path` inside nested structs, or None."""
    fields: Mapping[str, Value] = struct.fields
    *parents, last = path
    for key in parents:
        if key not in fields or fields[key].WhichOneof("kind") != "struct_value":
            return None
        fields = fields[key].struct_value.fields
    return scalar(fields, last)


def header_mutation(headers: Mapping[str, str], remove: Iterable[str] = ()) -> ext_proc_pb2.HeaderMutation:
    return ext_proc_pb2.HeaderMutation(
        set_headers=[
            base_pb2.HeaderValueOption(
                header=base_pb2.HeaderValue(key=name, raw_value=value.encode()),
                append_action=base_pb2.HeaderValueOption.APPEND_ACTION_OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in headers.items()
        ],
        remove_headers=list(remove),
    )


def request_headers_answer(
    headers: Mapping[str, str], remove: Iterable[str] = (), endpoint: str | None = None
) -> bytes:
    """The one answer that lets a request go: headers to set and remove, and the endpoint for Envoy's
    `override_host` policy in metadata, where no client can write."""
    answer = ext_proc_pb2.ProcessingResponse(
        request_headers=ext_proc_pb2.HeadersResponse(
            response=ext_proc_pb2.CommonResponse(header_mutation=header_mutation(headers, remove))
        )
    )
    if endpoint is not None:
        place = answer.dynamic_metadata.fields["fairlane.endpoint"].struct_value.fields["address"]
        place.string_value = endpoint
    return answer.SerializeToString()


def immediate_answer(status: int, body: bytes, headers: Mapping[str, str], details: str) -> bytes:
    """Envoy answers the client itself. `details` goes to Envoy's access log."""
    return ext_proc_pb2.ProcessingResponse(
        immediate_response=ext_proc_pb2.ImmediateResponse(
            status=base_pb2.HttpStatus(code=cast(base_pb2.HttpStatusCode, status)),
            headers=header_mutation(headers),
            body=body,
            details=details,
        )
    ).SerializeToString()
