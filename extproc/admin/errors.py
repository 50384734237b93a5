"""What the admin API answers instead of a result: `google.rpc.Status`, with what is wrong with which field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from extproc.config.load import ConfigError


@dataclass(frozen=True, slots=True)
class Violation:
    field: str  # path in the request or in the configuration; empty: of the whole
    description: str


class AdminError(Exception):
    """A call that cannot be done. The message names cause and cure."""

    def __init__(self, code: grpc.StatusCode, message: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)


def invalid(field: str, description: str) -> AdminError:
    """INVALID_ARGUMENT for one field."""
    return AdminError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{field}: {description}" if field else description,
        [Violation(field, description)],
    )


def invalid_config(error: ConfigError, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> AdminError:
    """For a configuration that cannot be."""
    return AdminError(code, str(error), [Violation(fault.path, fault.message) for fault in error.faults])


def status_of(error: AdminError) -> status_pb2.Status:
    """As it goes over the wire, in `grpc-status-details-bin`."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    if error.violations:
        details = error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=each.field, description=each.description)
                for each in error.violations
            ]
        )
        packed = any_pb2.Any()
        packed.Pack(details)
        status.details.append(packed)
    return status
