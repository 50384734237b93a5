"""Where the endpoints of a pool come from, and what has changed."""
