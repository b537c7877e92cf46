"""A form on several threads: its arrays are cut along a leading axis, the parts computed side by side, the results joined.

    spread(gated_delta_rule.chunk, 2)(q, k, v, g=g, beta=beta)

Heads and batches never meet, so every number is that of the undivided call, bit for bit; only a gradient that is summed over other axes, along which
its argument was broadcast, may add them up in another order.  NumPy lets other threads run while it computes;
that pays where its own operations are long, and where BLAS has one thread (OPENBLAS_NUM_THREADS=1): threads of BLAS on top of these would
only wait for each other.  Arrays on a GPU are not cut: there everything runs side by side already.
"""
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy

from .arguments import count
from .arrays import array_module
from .packed import axes_of
from .states import leaves, map_state


def spread(form, workers):
    """`form` (loop, matrix, chunk, or a vjp of a mechanism) on up to `workers` threads: the same arguments, the same results.

    Which leading axis is cut: the one whose parts are most even, the first of equal ones.  A gradient is summed over the axes along which
    its argument was broadcast, and a sum of sums rounds otherwise: a vjp is never cut along such an axis.  If no axis is left, `form` runs
    as it is.
    """
    workers, signature = count("workers", workers), inspect.signature(form)
    kinds = dict(axes_of(form), mask="T N", bias="T N")
    kinds |= dict(do=kinds.get("o", "T V"), o=kinds.get("o", "T V"), dfinal_state=kinds["state"])
    vjp = "do" in signature.parameters

    @functools.wraps(form)
    def spread_form(*args, **kwargs):
        x = signature.bind(*args, **kwargs).arguments
        arrays = {name: y for name, y in x.items() if name in kinds and y is not None}
        try:
            whole = lead_of(arrays, kinds)
            summed = [part.shape[:part.ndim - len(kind.split())] for n, y in arrays.items() if vjp and n not in ("do", "dfinal_state", "mask")
                      for part, kind in zip(leaves(y), leaves(kinds[n]))]
            axis = best_axis(whole, summed, workers) if array_module(x["q"]) is numpy else None
            if axis is None:
                return form(**x)
            kept = lead_of({n: y for n, y in arrays.items() if n not in ("q", "mask", "bias")}, kinds)       # a state knows nothing of queries
            n, context = whole[axis], [copy_context() for _ in range(workers)]
            parts = [slice(i * n // workers, (i + 1) * n // workers) for i in range(workers)]
            with ThreadPoolExecutor(workers) as pool:
                run = lambda b, own: own.run(form, **{m: cut(y, kinds[m], axis, b) if m in arrays else y for m, y in x.items()})
                results = list(pool.map(run, [b for b in parts if b.start < b.stop], context))
        except (AttributeError, TypeError, ValueError):                      # the message should name the arguments as they were given
            return form(**x)
        if vjp:
            return {name: join([r[name] for r in results], kinds[name], axis) for name in results[0]}
        o, states = zip(*results)
        return join(o, kinds["o"], axis), join(states, kinds["state"], axis) if size(kept, axis) > 1 else states[0]

    return spread_form


def best_axis(lead, others, workers):
    """The axis of `lead`, counted from the right, whose parts are most even, and along which all shapes in `others` are as long.

    None if there is none.

    >>> best_axis((3, 4), [], 2), best_axis((2, 4), [], 2), best_axis((3, 4), [(3, 1)], 2), best_axis((1,), [], 2)
    (-1, -2, -2, None)
    """
    axes = [axis for axis in range(-len(lead), 0) if lead[axis] > 1 and all(size(other, axis) == lead[axis] for other in others)]
    return max(axes, key=lambda axis: lead[axis] / -(-lead[axis] // workers), default=None) if workers > 1 else None


def lead_of(arrays, kinds):
    """The common leading shape."""
    return numpy.broadcast_shapes(*(y.shape[:y.ndim - len(kind.split())]
                                    for name, x in arrays.items() for y, kind in zip(leaves(x), leaves(kinds[name]))))


def size(lead, axis):
    return lead[axis] if len(lead) >= -axis else 1


def cut(x, kind, axis, b):
    """Part `b` of an argument along a leading axis; one that broadcasts along it stays whole."""
    def of(y, kind):
        at = axis - len(kind.split())
        return y[(..., b) + (slice(None),) * (-1 - at)] if y.ndim >= -at and y.shape[at] > 1 else y

    return map_state(of, x, kind)


def join(parts, kind, axis):
    """The parts of a result, one behind the other."""
    return map_state(lambda kind, *x: numpy.concatenate(x, axis - len(kind.split())), kind, *parts)
