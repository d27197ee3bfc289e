"""The cut at TTIR: target, requests, front half, back half and toolchain.

The zygote imports this package, so nothing here imports torch or any other part of kernelfarm.
"""
