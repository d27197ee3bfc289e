"""Printers: kernel text, and the Python that runs a host program."""
