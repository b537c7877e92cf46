"""A dump against the mechanism in float64."""
import inspect
from dataclasses import replace

import numpy as np

from .files import load
from .layer import is_layer
from .layer_report import report_on
from .layout import DumpError
from .measure import FROM_INPUTS, LEVELS, coarsest, error, holds, precision, precision_of_inputs
from .own import own, sizes, wrong_heads
from .problem import evaluate, takes
from .read import name_in, read
from .report import Report, Row


def check_dump(path_or_mapping, mechanism=None, layout=None):
    """Whether the outputs and gradients in a dump are right: a Report.

    path_or_mapping: an .npz file, or the same keys and arrays (whatever NumPy can convert) in a mapping; the format is in
    derivations/dump_format.md.  mechanism, layout (bthd or bhtd): go before what the dump says.  Raises DumpError, a ValueError of one
    line, for what cannot be used.
    """
    arrays = load(path_or_mapping)
    if is_layer(arrays, mechanism or name_in(arrays)):
        return report_on(arrays)[0]
    dump = read(arrays, mechanism, layout)
    return compare(dump, right_outputs(dump))


def right_outputs(dump):
    """What the dump's outputs should be; DumpError where the mechanism refuses its arguments."""
    try:
        with np.errstate(all="ignore"):
            return evaluate(dump.problem, gradients=any(key.startswith("d") for key in dump.outputs))
    except (TypeError, ValueError) as error:
        raise DumpError(" ".join(str(error).split())) from None


def compare(dump, expected):
    """The Report on a dump's outputs against `expected`."""
    p = dump.problem
    real = {key: p.real if dump.axes[key][2] in "TN" else None for key in dump.outputs}
    types = {key: precision(x, expected[key], dump.types[key]) for key, x in dump.outputs.items()}
    worst = coarsest(types.values())
    # fewer than 16 values do not tell their type: they are taken to be like the other outputs
    types |= {key: worst for key, x in dump.outputs.items() if x.size < 16 and holds(x, worst)}
    low = precision_of_inputs([p.arrays[name] for name in "qkv"])
    rows = tuple(row_of(key, dump, expected[key], real[key], types[key], low) for key in dump.outputs)
    heads = wrong_heads(p, rows, expected, real)
    rows = tuple(replace(row, heads=heads.get(row.name, ())) for row in rows)
    return Report(p.mechanism.name, dump.layout, dump.sizes, tuple(assumptions(p)), worst, rows)


def row_of(key, dump, expected, real, rounded, low):
    """The Row of one output, with the level of its own type; that of the inputs counts for what is float32, were they coarser."""
    x, size = dump.outputs[key], np.abs(expected[np.isfinite(expected)]).max(initial=0)
    level, low = (FROM_INPUTS[low], low) if low and rounded == "float32" else (LEVELS[rounded], "")
    least = 2.0 ** -24 if rounded == "float16" else 0    # the step between the smallest numbers of the type
    e = error(x, expected, real)
    heads = own(e, sizes(expected, real)).max(axis=0, initial=-1)
    return Row(key, x.shape, dump.axes[key], e, max(level, least / (size or 1)), rounded, low, heads)


def assumptions(problem):
    """What the comparison takes as meant, one sentence each."""
    defaults = inspect.signature(problem.mechanism.module.loop).parameters
    for name in takes(problem.mechanism)[2]:
        if name not in problem.options:
            value = "K ** -0.5" if name == "scale" else "unlimited" if name == "window" else defaults[name].default
            yield f"{name} {value}: there is no opt.{name}"
    yield from (f"{name} {value}" for name, value in problem.options.items())
    yield "q and k divided by sqrt(sum x^2 + 1e-6)" if problem.l2norm else "q and k used as they are: no l2 norm"
    given = any(key.startswith("state") for key in problem.arrays)
    queries, keys = (problem.arrays[name].shape[2] for name in "qk")
    if queries != keys:
        cached, causal = "state.k" in problem.arrays, problem.options.get("causal", defaults["causal"].default)
        yield (f"queries are {queries} and new keys {keys}: both are counted from the first one, " +
               ("behind the cache" if cached else "from the top left, as there is no cache (state.k, state.v)") +
               (f"; query i sees {'the cache and ' * cached}keys up to i" if causal else ""))
    yield f"initial state {'given' if given else 'zero' if problem.mechanism.recurrent else 'empty'}"
    if problem.real is not None:
        yield f"{int((~problem.real).sum())} of {problem.real.size} tokens are padding"
    if problem.cu_seqlens is not None:
        yield f"{len(problem.cu_seqlens) - 1} packed sequences"
