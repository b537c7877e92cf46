"""How long a call takes, and how much memory: on the processor with NumPy, on a GPU with CuPy."""
import gc
import time
import tracemalloc
from statistics import median
from typing import NamedTuple

import numpy

ENOUGH = 0.02                                            # seconds: what is shorter runs several times


class Time(NamedTuple):
    """Seconds a call: the median of several runs, the least and the most."""
    median: float
    least: float
    most: float


class Processor:
    """Arrays of NumPy, seconds of the wall clock, memory as NumPy reports it to tracemalloc."""
    name = "cpu"

    def move(self, x):
        return x

    def seconds(self, call, times):
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times

    def memory(self, call):
        """(bytes at the peak beyond arguments and results, bytes of the results)."""
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            result = call()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del result
        return peak - after, after - before


class Gpu:
    """Arrays of CuPy, seconds between two events on the GPU's stream, memory that CuPy's pool takes from the device."""
    name = "cuda"

    def __init__(self):
        try:
            import cupy
            cupy.cuda.Device().use()
        except Exception as error:                       # not installed, or no GPU: CuPy has errors of its own for that
            raise ValueError(f"--device cuda needs CuPy and an NVIDIA GPU: {type(error).__name__}: {error}") from None
        self.cupy = cupy

    def move(self, x):
        return self.cupy.asarray(x)

    def seconds(self, call, times):
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        for _ in range(times):
            call()
        stop.record()
        stop.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, stop) / 1e3 / times

    def memory(self, call):
        gc.collect()
        pool = self.cupy.get_default_memory_pool()
        pool.free_all_blocks()
        before = pool.used_bytes()
        result = call()
        peak, after = pool.total_bytes(), pool.used_bytes()
        del result
        return peak - after, after - before


def interleaved(device, calls, repeats, pause=0):
    """{name: [seconds]}: in every round each call in turn, so that whatever else the machine does meets all of them.

    Each has run once before.  What is short runs often enough to be measured.  `pause` seconds pass before each: threads that spin after a
    product, waiting for the next one, have then gone to sleep, and do not take the processor from the threads of another library.
    """
    times, found = {}, {name: [] for name in calls}
    for name, call in calls.items():
        device.seconds(call, 1)
        times[name] = max(1, min(1000, int(ENOUGH / max(device.seconds(call, 1), 1e-6))))
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(pause)
            found[name].append(device.seconds(call, times[name]))
    return found


def summary(seconds):
    """
    >>> summary([3., 1., 2.])
    Time(median=2.0, least=1.0, most=3.0)
    """
    return Time(median(seconds), min(seconds), max(seconds))


def ratio(theirs, ours):
    """How many times as fast we are: the median over the rounds, each round's two times having been taken one after the other.

    >>> ratio([2., 6, 4], [1., 2, 1])
    3.0
    """
    return median(a / b for a, b in zip(theirs, ours))


def product(device, operations, dtype, workers=1):
    """A call: one product of two square matrices, of so many multiplications and additions, on as many threads as the forms have."""
    from concurrent.futures import ThreadPoolExecutor
    n = max(round((operations / 2) ** (1 / 3)), 1)
    a, b = (device.move(numpy.random.default_rng(seed).standard_normal((n, n)).astype(dtype)) for seed in (0, 1))
    if workers == 1:
        return lambda: a @ b
    rows = [a[i * n // workers:(i + 1) * n // workers] for i in range(workers)]

    def on_threads():
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda part: part @ b, rows))

    return on_threads
