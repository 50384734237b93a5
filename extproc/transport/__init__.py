"""TLS of the ports: certificate files that are read again while they are used, for gRPC's servers and for asyncio's."""
