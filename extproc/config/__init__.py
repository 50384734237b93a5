"""The configuration file: its model, and reading it. An immutable snapshot, validated whole."""
