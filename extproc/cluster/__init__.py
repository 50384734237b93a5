"""Several replicas of the service: the store that they tell each other through (Valkey or Redis), and who is active."""
