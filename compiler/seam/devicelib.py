"""Device functions that emitted kernels call as ``kf.name(...)``."""
