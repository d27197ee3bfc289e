"""Which environment variables reach generated code, and in which form they enter a key.

A variable counts if a known prefix says that a compiler may read it and no list says that it is
harmless; unknown ones count, because a missed variable gives wrong results and a superfluous one
only a miss. Booleans are brought to one form and dropped at their default, so that "unset" and
"0" are one key. Variables that name a file count by that file's content, not by its path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LINE_INFO = "TRITON_DISABLE_LINE_INFO"

_PREFIXES = (
    "TRITON_",
    "AMDGCN_",
    "MLIR_",
    "LLVM_",
    "NVPTX_",
    "PTXAS_",
    "DISABLE_",
    "ENABLE_",
    "ALLOW_LHS_",
    "USE_IR_LOC",
)

#: Read by Triton, and without influence on a binary made by our back half.
_HARMLESS = _words(
    """
    TRITON_HOME TRITON_CACHE_DIR TRITON_DUMP_DIR TRITON_OVERRIDE_DIR TRITON_CACHE_MANAGER
    TRITON_REMOTE_CACHE_BACKEND TRITON_REDIS_KEY_FORMAT TRITON_REDIS_HOST TRITON_REDIS_PORT
    TRITON_STORE_BINARY_ONLY TRITON_CACHE_AUTOTUNING TRITON_PRINT_AUTOTUNING TRITON_INTERPRET
    TRITON_FRONT_END_DEBUGGING TRITON_ALLOW_NON_CONSTEXPR_GLOBALS TRITON_DUMP_PTXAS_LOG
    TRITON_LIBCUDA_PATH TRITON_LIBHIP_PATH TRITON_CUDACRT_PATH TRITON_CUDART_PATH
    TRITON_CUOBJDUMP_PATH TRITON_NVDISASM_PATH TRITON_CUPTI_LIB_PATH
    TRITON_CUPTI_LIB_BLACKWELL_PATH TRITON_PROTON_DISABLE TRITON_ENABLE_NVTX
    TRITON_ENABLE_HW_TRACE TRITON_PROFILE_BUFFER_SIZE TRITON_PROFILE_METRIC_BUFFER_SIZE
    TRITON_HSA_RUNTIME_PATH TRITON_HSA_RUNTIME_LIBRARY TRITON_ROCPROFILER_SDK_INCLUDE_PATH
    TRITON_ROCPROFILER_SDK_LIB_PATH TRITON_ROCPROFILER_SDK_LIBRARY TRITON_ROCTRACER_LIB_PATH
    TRITON_ROCTRACER_LIBRARY TRITON_ROCTX_LIB_PATH TRITON_ROCTX_LIBRARY
    TRITON_ENABLE_PYTHON_STACKTRACE TRITON_REPRODUCER_PATH TRITON_DEFAULT_FP_FUSION
    TRITON_CI_CACHE_PHASE TRITON_CI_COMPILE_TRACE_DIR TRITON_TEST_JUNIT_DIR
    TRITON_TEST_NUM_GPUS TRITON_TEST_PROCESS_TIMEOUT TRITON_TEST_VISIBLE_GPUS
    TRITON_WARMUP_COMPILER_WORKER TRITON_WARMUP_COORDINATOR TRITON_WARMUP_DEBUG
    LLVM_SYMBOLIZER_PATH LLVM_DISABLE_SYMBOLIZATION LLVM_ENABLE_SYMBOLIZER_MARKUP
    LLVM_ENABLE_TIMING LLVM_PROFILE_FILE LLVM_CONFIG LLVM_DIR LLVM_HOME LLVM_ROOT
    MLIR_ENABLE_TIMING MLIR_ENABLE_DIAGNOSTICS MLIR_DUMP_PATH DISABLE_SUBPROCESS
    """
)

#: Files that code generation reads; their content is a part of its own.
CONTENT_VARIABLES = (
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_AMD_CODEGEN_PATH",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_PLUGIN_PATHS",
    "LLVM_PASS_PLUGIN_PATH",
    "TRITON_SWAP_MIR",
)

_TOOLS = frozenset({"TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"})
_PATH_LISTS = frozenset({"TRITON_PLUGIN_PATHS", "LLVM_PASS_PLUGIN_PATH"})

#: With one of these set, what comes out depends on files beside the compiler: never shared.
LOCAL_VARIABLES = (
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_SWAP_MIR",
    "TRITON_DUMP_MIR",
    "TRITON_ALWAYS_COMPILE",
)

_TRUE = frozenset({"1", "on", "true"})
_FALSE = frozenset({"0", "off", "false"})

_DEFAULT_FALSE = _words(
    """
    DISABLE_LLVM_OPT DISABLE_PTXAS_OPT DISABLE_MMA_V3 DISABLE_MMA_V5 MLIR_ENABLE_DUMP
    LLVM_IR_ENABLE_DUMP NVPTX_ENABLE_DUMP AMDGCN_ENABLE_DUMP AMDGCN_SCALARIZE_PACKED_FOPS
    AMDGCN_ANALYZE_SMALL_TENSOR_RANGE LLVM_EXTRACT_DI_LOCAL_VARIABLES TRITON_DEBUG
    TRITON_KERNEL_OVERRIDE TRITON_KERNEL_DUMP TRITON_ALWAYS_COMPILE TRITON_ENABLE_ASAN
    TRITON_FORCE_DISABLE_FP_FUSION TRITON_FPSAN_HOMOMORPHIC_CASTS TRITON_ENABLE_LLVM_DEBUG
    TRITON_SWAP_MIR_ENABLE_MISCHED TRITON_ENABLE_EXPERIMENTAL_CONSAN MLIR_DISABLE_MULTITHREADING
    ALLOW_LHS_TMEM_LAYOUT_CONVERSION
    """
)
_DEFAULT_TRUE = frozenset({"AMDGCN_USE_BUFFER_OPS", "AMDGCN_USE_BUFFER_ATOMICS"})


def codegen_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that enter a key as ``env.NAME``, normalised, sorted by name.

    Line info is always among them: "1" (off) unless the user asked for it by setting it false.
    """
    chosen = {LINE_INFO: "0" if wants_line_info(environ) else "1"}
    for name, value in environ.items():
        if name in _HARMLESS or name in CONTENT_VARIABLES or name == LINE_INFO:
            continue
        if name.startswith(_PREFIXES) and (normal := _normalised(name, value)) is not None:
            chosen[name] = normal
    return dict(sorted(chosen.items()))


def codegen_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a zygote for this environment is started with, beside PATH, HOME and TMPDIR.

    It is exactly what the key holds, plus the file variables as absolute paths, because a worker
    has another working directory and another PATH. The default of fp fusion is
    pinned because Triton warns once per process when it is unset; requests always say it.
    """
    chosen = codegen_variables(environ)
    for name in CONTENT_VARIABLES:
        if paths := files_named(name, environ):
            chosen[name] = os.pathsep.join(paths)
    chosen["TRITON_DEFAULT_FP_FUSION"] = "1"
    return dict(sorted(chosen.items()))


def files_named(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the absolute paths that one of CONTENT_VARIABLES means, () where it is unset or empty.

    A bare tool name is looked up in PATH, as starting it would; what is not found stays a path, so
    that it counts as missing.
    """
    value = environ.get(name, "")
    if name in _TOOLS and value and os.sep not in value:
        import shutil

        value = shutil.which(value, path=environ.get("PATH")) or value
    texts = value.split(os.pathsep) if name in _PATH_LISTS else [value]
    return tuple(os.path.abspath(text) for text in texts if text)


def names_relative_files(environ: Mapping[str, str]) -> bool:
    """Say whether a file variable means something else in another working directory."""
    return any(
        environ.get(name) and files_named(name, environ) != tuple(environ[name].split(os.pathsep))
        for name in CONTENT_VARIABLES
    )


def wants_line_info(environ: Mapping[str, str]) -> bool:
    """Say whether the user asked for line info: only by an explicit false, not by leaving it."""
    return environ.get(LINE_INFO, "").strip().lower() in _FALSE


def is_local(environ: Mapping[str, str]) -> bool:
    """Say whether this environment's results must stay on this machine."""
    if wants_line_info(environ):
        return True
    return any(
        _normalised(name, environ[name]) is not None
        for name in LOCAL_VARIABLES
        if environ.get(name)
    )


def _normalised(name: str, value: str) -> str | None:
    word = value.strip().lower()
    if word in _TRUE:
        return None if name in _DEFAULT_TRUE else _as_bool(name, value, "1")
    if word in _FALSE:
        return None if name in _DEFAULT_FALSE else _as_bool(name, value, "0")
    return value


def _as_bool(name: str, value: str, canonical: str) -> str:
    # Only for variables known to be booleans: elsewhere "1" and "on" may mean different things.
    return canonical if name in _DEFAULT_FALSE or name in _DEFAULT_TRUE else value
