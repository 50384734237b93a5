"""The gRPC port for people: health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


def build() -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """A server with no port yet, not started."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((_HEALTH, reflection.SERVICE_NAME), server)
    return server, servicer
