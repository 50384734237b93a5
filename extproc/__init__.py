"""Fairlane: fair priority queues for LLM requests behind Envoy's ext_proc filter."""

__version__ = "0.1.0"
