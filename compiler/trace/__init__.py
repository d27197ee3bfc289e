"""From a Python callable to a canonical ATen graph for an explicit target."""
