"""The messages on the wire: small readers and writers over the generated classes.

Two facts of Envoy shape the writers: `HeaderValue.value` is ignored, `raw_value` is what counts; and a
header that is set always overwrites, whatever `append_action` says.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import cast

from google.protobuf.struct_pb2 import Struct

from extproc.pb.wire.v1 import base_pb2, ext_proc_pb2

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
ACCESS_LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"

Scalar = str | float | bool | None
_SCALARS = frozenset({"string_value", "number_value", "bool_value"})

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


def headers_of(message: ext_proc_pb2.HttpHeaders, wanted: Container[str] | None = None) -> dict[str, str]:
    """Name to value; Envoy sends names in lower case. Of a header that comes more than once the last counts: what Envoy
    appends stands behind what the client sent. `wanted`: the names to look at; None: all."""
    headers = message.headers.headers
    if wanted is None:
        return {h.key: str(h.raw_value, "utf-8", "replace") or h.value for h in headers}
    return {key: h.raw_value.decode("utf-8", "replace") or h.value for h in headers if (key := h.key) in wanted}


def scalars(struct: Struct) -> dict[str, Scalar]:
    """The members of a Struct; None stands for null, a list or a struct."""
    found: dict[str, Scalar] = {}
    fields = struct.fields
    for name in fields:  # `items` is written in Python
        value = fields[name]
        kind = value.WhichOneof("kind")
        found[name] = getattr(value, kind) if kind in _SCALARS else None
    return found


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


def request_headers_answer(headers: Mapping[str, str], remove: Iterable[str] = ()) -> bytes:
    """The request goes on, with headers set and removed. `release_answer` writes that of a released one."""
    return ext_proc_pb2.ProcessingResponse(
        request_headers=ext_proc_pb2.HeadersResponse(
            response=ext_proc_pb2.CommonResponse(header_mutation=header_mutation(headers, remove))
        )
    ).SerializeToString()


def request_body_answer(
    headers: Mapping[str, str],
    remove: Iterable[str] = (),
    address: str | None = None,
    body: bytes | None = None,
) -> bytes:
    """The answer to a buffered request body. `address`: as in `release_answer`. `body`: instead of what came; Envoy
    wants its length with it."""
    if body is not None:
        headers = {**headers, "content-length": str(len(body))}
    common = ext_proc_pb2.CommonResponse(header_mutation=header_mutation(headers, remove))
    if body is not None:
        common.body_mutation.body = body
    answer = ext_proc_pb2.ProcessingResponse(request_body=ext_proc_pb2.BodyResponse(response=common))
    if address is not None:
        place = answer.dynamic_metadata.fields["fairlane.endpoint"].struct_value.fields["address"]
        place.string_value = address
    return answer.SerializeToString()


def response_body_answer(body: bytes) -> bytes:
    """Another piece of the answer in place of the one that came; it may be empty."""
    common = ext_proc_pb2.CommonResponse()
    if body:
        common.body_mutation.body = body
    else:
        common.body_mutation.clear_body = True
    return ext_proc_pb2.ProcessingResponse(response_body=ext_proc_pb2.BodyResponse(response=common)).SerializeToString()


def streamed_body(kind: str, body: bytes, end_of_stream: bool) -> bytes:
    """A piece of a body in mode FULL_DUPLEX_STREAMED. `kind`: request_body or response_body."""
    mutation = ext_proc_pb2.BodyMutation(
        streamed_response=ext_proc_pb2.StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    )
    piece = ext_proc_pb2.BodyResponse(response=ext_proc_pb2.CommonResponse(body_mutation=mutation))
    if kind == "request_body":
        return ext_proc_pb2.ProcessingResponse(request_body=piece).SerializeToString()
    return ext_proc_pb2.ProcessingResponse(response_body=piece).SerializeToString()


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
