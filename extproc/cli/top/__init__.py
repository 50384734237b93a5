"""`fairlane top`: what a running service does, in a terminal, over its admin API.

A picture is drawn by pure functions from what the service said last (`figures`) and what the keys chose (`choices`):
`picture` lays it out, `sections` has the tables, `table` and `bars` fit them into the width, `text` makes the names
harmless that clients chose. `feed` asks the service, in threads of its own; `terminal` owns the state of the terminal,
`keys` reads it; `live` is the loop between them.

rich gives text with styles, the width of characters and the terminal's colours. Its Live is not used: it writes the
whole picture each time, and it reads no keys. Here a line is written when it has changed.
"""
