"""A client that sends exactly the header fields that it is told, over HTTP/2, once each in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h2.config
import h2.connection
import h2.events

from extproc.cli.ports import HostPort

Fields = Sequence[tuple[bytes, bytes]]


async def request(at: HostPort, path: str, body: bytes, fields: Fields) -> int:
    """POST, and the status. Raises ConnectionError when the server resets the stream or ends the connection."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        # What is checked at the sender would never reach the server.
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        connection = h2.connection.H2Connection(config)
        connection.initiate_connection()
        head = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", str(at).encode()),
            (b":path", path.encode()),
        ]
        connection.send_headers(1, [*head, (b"content-type", b"application/json"), *fields])
        connection.send_data(1, body, end_stream=True)
        writer.write(connection.data_to_send())
        while data := await reader.read(65536):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    return int(dict(event.headers)[b":status"])
                if isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    raise ConnectionError(f"{type(event).__name__} {event.error_code}")
            writer.write(connection.data_to_send())
        raise ConnectionError("the server has closed the connection")
    finally:
        writer.close()
