"""The compiler: from a PyTorch graph to kernels and a host program, in the order the data flows.

trace/      Dynamo and AOTAutograd entry, fake devices, device-dependent choices made by us
graph_key   the canonical form of an ATen graph, as named key parts
symbols     sizes that only a call knows: names, ranges, guards (sym, reach, sized, host_sizes)
lower/      ATen nodes become loop bodies, views and extern calls (ir, body, folding, ops, index)
fuse        loop nests become groups, each one kernel (prologue: small ones share a launch)
tile        an axis for every loop, a block size for every axis
emit/       kernel text and the Python that runs a host program
assemble    groups become the lines of a host program
host        the host program: data, planned (reuse) and verified; stored opens one from a record
seam/       target, request, front half (text to TTIR), back half (TTIR to binary)
runtime/    launchers and the loader
context     what one compile knows of the world: target, services, runtime, knobs
pipeline    the whole of it on one page; generate is its half for a graph that is not stored

Importing this package imports nothing else; the zygote imports ``compiler.seam`` without torch.
"""
