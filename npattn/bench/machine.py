"""What a time depends on besides the code: processor, threads, versions."""
import importlib.metadata
import os
import platform
from datetime import date

import numpy as np

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE")


def machine(with_torch=False, device="cpu"):
    """{name: text} for the head of a table."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = dict(date=date.today().isoformat(), processor=f"{processor()}, {cores} cores",
                 versions=", ".join([f"Python {platform.python_version()}", *versions("npattn", "numpy", "scipy")]), BLAS=blas())
    if with_torch:
        import torch
        found["torch"] = ", ".join([torch.__version__, f"{torch.get_num_threads()} threads",
                                    *versions("transformers", "flash-linear-attention", "triton")])
    if device == "cuda":
        import cupy
        found["GPU"] = f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, CuPy {cupy.__version__}"
    return found


def processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions(*packages):
    """Those that are installed."""
    for name in packages:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def blas():
    """The library of matrix products, its number of threads and the processors its kernels are for, as far as can be known."""
    built = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    given = [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)]
    try:
        from threadpoolctl import threadpool_info
        found = [f"threads {x['num_threads']}, kernels for {x.get('architecture', 'unknown')}" for x in threadpool_info()
                 if x["user_api"] == "blas" and "numpy" in x["filepath"]]
    except ImportError:
        found = [] if any("NUM_THREADS" in x for x in given) else ["as many threads as cores, for no variable sets it"]
    return ", ".join([f"{built.get('name', 'unknown')} {built.get('version', '')}".strip(), *found, *given])
