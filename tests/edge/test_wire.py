"""Readers and writers of single messages."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import Immediate, Response
from google.protobuf.struct_pb2 import Struct

from extproc.core.reasons import Reason
from extproc.edge import wire
from extproc.edge.replies import refuse
from extproc.pb.wire.v1 import base_pb2, ext_proc_pb2

KINDS = [field.name for field in ext_proc_pb2.ProcessingRequest.DESCRIPTOR.oneofs_by_name["request"].fields]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_answer_of_its_kind_that_changes_nothing(kind: str) -> None:
    raw = wire.go_on(kind)
    assert raw is not None
    answer = Response.FromString(raw)
    assert answer.WhichOneof("response") == kind
    inner = getattr(answer, kind)
    if "trailers" not in kind:
        assert inner.response == ext_proc_pb2.CommonResponse()
    assert answer.ByteSize() <= 4


def test_a_kind_that_is_not_known_has_none() -> None:
    assert wire.go_on("") is None
    assert wire.go_on("immediate_response") is None


def a_struct(**fields: Any) -> Struct:
    made = Struct()
    made.update(fields)
    return made


@pytest.mark.parametrize(
    ("given", "read"),
    [("x", "x"), ("", ""), (0, 0.0), (1.5, 1.5), (False, False), (None, None), ([1], None), ({"a": 1}, None)],
)
def test_scalars(given: Any, read: Any) -> None:
    found = wire.scalars(a_struct(k=given))
    assert found == {"k": read}
    assert type(found["k"]) is type(read)


def test_headers_are_written_as_envoy_reads_them() -> None:
    """`value` is ignored by Envoy; what is set overwrites."""
    mutation = wire.header_mutation({"a": "Grüße"}, ["b", "c"])
    (option,) = mutation.set_headers
    assert (option.header.key, option.header.value, option.header.raw_value) == ("a", "", "Grüße".encode())
    assert option.append_action == base_pb2.HeaderValueOption.APPEND_ACTION_OVERWRITE_IF_EXISTS_OR_ADD
    assert list(mutation.remove_headers) == ["b", "c"]


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_makes_an_error_that_openai_clients_read(reason: Reason) -> None:
    answer = Immediate.of(Response.FromString(refuse(reason, "says why", 7, "model")))
    assert answer.status == reason.status
    assert answer.error == {"message": "says why", "type": reason.error_type, "param": "model", "code": reason.code}
    retry = {"retry-after": "7"} if reason.retry else {}
    assert answer.headers == {"content-type": "application/json", "x-fairlane-reason": reason.code, **retry}
    assert answer.details == f"fairlane_{reason.code}"
    assert " " not in answer.details  # it stands in text logs too


def test_without_a_time_nothing_is_said_of_coming_back() -> None:
    answer = Immediate.of(Response.FromString(refuse(Reason.NO_CAPACITY, "why")))
    assert "retry-after" not in answer.headers
    assert answer.error["param"] is None
