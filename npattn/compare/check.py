"""A dump against the mechanism in float64."""
import numpy as np

from .files import load
from .layer import is_layer
from .layer_report import report_on
from .layout import DumpError
from .measure import LEVELS, coarsest, error, precision
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
    rounded = coarsest(precision(x, expected[key], dump.types[key]) for key, x in dump.outputs.items())
    least = 2.0 ** -24 if rounded == "float16" else 0    # the step between the smallest numbers of the type
    rows = tuple(Row(key, x.shape, dump.axes[key], error(x, expected[key], real[key]),
                     max(LEVELS[rounded], least / (np.abs(expected[key][np.isfinite(expected[key])]).max(initial=0) or 1)))
                 for key, x in dump.outputs.items())
    return Report(p.mechanism.name, dump.layout, dump.sizes, tuple(assumptions(p)), rounded, rows)


def assumptions(problem):
    """What the comparison takes as meant, one sentence each."""
    options = takes(problem.mechanism)[2]
    if "scale" in options and "scale" not in problem.options:
        yield "scale K ** -0.5: there is no opt.scale"
    yield from (f"{name} {value}" for name, value in problem.options.items())
    yield "q and k divided by sqrt(sum x^2 + 1e-6)" if problem.l2norm else "q and k used as they are: no l2 norm"
    given = any(key.startswith("state") for key in problem.arrays)
    yield f"initial state {'given' if given else 'zero' if problem.mechanism.recurrent else 'empty'}"
    if problem.real is not None:
        yield f"{int((~problem.real).sum())} of {problem.real.size} tokens are padding"
    if problem.cu_seqlens is not None:
        yield f"{len(problem.cu_seqlens) - 1} packed sequences"
