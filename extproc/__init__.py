"""Fairlane: fair priority queues for LLM requests behind Envoy's ext_proc filter."""

import os

# gRPC's own library writes a line on standard error, in a form of its own, for each handshake that fails. So whoever
# reaches a port could fill the disk. It reads this once, when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"
