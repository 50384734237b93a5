"""The scheduler: what is released, when, and to whom.

Pure: no sockets, no clock, no logging, no randomness. Events go in with a time (`now`, seconds as
float), effects come out. The live service, the simulator and the tests drive the same code.

Reading order: `model` (the words), `events` (what goes in and comes out), `fair_queue` (the theory),
`window`, `scheduler` (the one writer).
"""
