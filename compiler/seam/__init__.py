"""The seam: the one place where kernelfarm touches Triton, cut at TTIR.

target     what is compiled for: an architecture and a device model
device     the table of device models
digests    sha256 of files, remembered on disk by their stat
canonical  one byte encoding for every value that enters a key
options    every field of the backend's options, by name
environment which environment variables reach generated code
installation where triton is and which of its files count
record     an installation against its own RECORD
toolchain  the identity of the compiler that is installed here
request    SourceRequest and CompileRequest: what is asked
artifact   what is answered
front      SourceRequest to CompileRequest: Python text to TTIR
back       CompileRequest to Artifact: TTIR to a binary
binary     what a cubin or hsaco says about itself
versions   every difference between supported Triton versions
devicelib  device functions that emitted kernels call
errors     what can go wrong

Nothing here imports torch, and nothing of ours outside this folder; Triton is imported inside
functions, so that importing the seam costs nothing.
"""
