"""Envoy's side for gateways that make Envoy's configuration themselves: what has to be added to theirs."""
