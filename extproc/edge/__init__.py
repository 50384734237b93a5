"""Envoy's side: the ext_proc stream, the access log, what they say and what is answered.

`stream` is the way of a request; `wire` reads and writes the messages; `facts`, `identity` and `usage`
say what a message means; `driver` ties the streams to a pool's scheduler.
"""
