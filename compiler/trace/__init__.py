"""From a Python callable to a canonical ATen graph for an explicit target.

fake           runs and traces a callable on fake tensors (`kernelfarm warm`), no GPU needed
moving         modules, arguments and closures on fake tensors
answers        what a model asks about the device
absent         what torch asks about the device
shim           the device guard that a CPU build of torch lacks
dynamo         Dynamo's graph to AOTAutograd's graphs to `compile_graph`
choices        device-dependent operators, decided by the target (attention, literals, upsampling)
layout         convolutions and what surrounds them, channels-last
decomposition  which operators AOTAutograd takes apart
tidy           equal computations merged
clock          Dynamo's own seconds
"""
