"""The farm: a node broker, its zygotes, and the client that asks them for kernels."""
