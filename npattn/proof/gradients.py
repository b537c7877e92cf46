"""Gradients by ways that share no code with those derived by hand, and the comparison of the two.

    exact dual             dual numbers in fractions: no rounding at all               rational functions
    complex step           imag f(x + i h) / h, h = 1e-30: rounding error only         analytic functions of float64
    central differences    (f(x + h) - f(x - h)) / 2h: nine digits                     everything else
    tape                   reverse mode through the unchanged function                 what NumPy functions the tape knows

check_gradients proves a function of your own, check_mechanism one of the catalogue.
"""
from fractions import Fraction
import inspect
from numbers import Number
from typing import NamedTuple

import numpy as np

from ..catalogue import CATALOGUE
from ..core.states import map_state
from .differences import central_differences, complex_step, is_analytic
from .dual import dual_gradient
from .exact import log, random_fractions
from .law import settings
from .material import exact_arguments, gates
from .measure import relative_error
from .tape import grad, walk


def tape_gradient(f, *arrays):
    return grad(f)(*arrays)


# How to prove, and how far a right gradient may be from the proof, relative to its largest entry.
PROOFS = {"exact dual": (dual_gradient, 0), "complex step": (complex_step, 1e-12), "central differences": (central_differences, 1e-7),
          "tape": (tape_gradient, 1e-11)}


# --- a function of your own ----------------------------------------------------------------------------------------

def check_gradients(f, f_vjp, *arrays, do=None):
    """{argument: (proof, error)}: the gradients f_vjp(do, *arrays) of sum(f(*arrays) do) against the strongest proof that applies.

    f         gives an array, or a tuple of arrays; it has to keep the types of its arguments
    f_vjp     gives a dict by argument name, a tuple in the order of the arguments, or one array
    arrays    float64, complex or fractions; integers and booleans are passed on and have no gradient.  Named tuples of arrays count leaf by leaf
    do        a gradient for every result, None for zero; left out, random

    The error is relative to the largest entry; for fractions it is 0 or inf.  TypeError for float32, which proves nothing; ValueError where
    a gradient is missing or has not its argument's shape.

    >>> softmax = lambda x: np.exp(x) / np.exp(x).sum()
    >>> found = check_gradients(softmax, lambda dy, x: softmax(x) * (dy - (softmax(x) * dy).sum()), np.array([0., 1, 2]))
    >>> [(name, proof, error < 1e-14) for name, (proof, error) in found.items()]
    [('x', 'complex step', True)]
    """
    named = dict(zip(argument_names(f, len(arrays)), arrays, strict=True))
    call = lambda named: f(*named.values())
    do = random_cotangents(np.random.default_rng(0), call(named)) if do is None else do
    proof = choose(call, named, do)
    wanted = prove(proof, call, named, do)
    got = by_label(named, f_vjp(do, *arrays), wanted)
    return {label: (proof, relative_error(got[label], wanted[label])) for label in wanted}


def choose(f, named, do):
    """The name of the strongest proof for these arguments."""
    scalar, arrays = scalar_of(f, named, do)
    kinds = {x.dtype.kind for x in arrays}
    if "O" in kinds:
        if len(kinds) > 1:
            raise TypeError("check_gradients: fractions and floats cannot be mixed: " + describe(named))
        return "exact dual"
    if any(x.dtype not in (np.float64, np.complex128) for x in arrays):
        raise TypeError("check_gradients needs float64, complex128 or fractions: " + describe(named))
    return "complex step" if kinds <= {"f"} and is_analytic(scalar, *arrays) else "central differences"


def prove(proof, f, named, do):
    """{label: gradient} of sum(f(named) do) by one of PROOFS."""
    scalar, arrays = scalar_of(f, named, do)
    return dict(zip(varying(named), PROOFS[proof][0](scalar, *arrays)))


def scalar_of(f, named, do):
    """(the function of the arrays to differentiate that gives sum(f do), those arrays)."""
    flat = labelled(named)

    def scalar(*arrays):
        return inner(f(unlabelled(named, {**flat, **dict(zip(varying(named), arrays))})), do)
    return scalar, [flat[label] for label in varying(named)]


def inner(y, do):
    if isinstance(y, (tuple, list)):
        return sum(inner(*pair) for pair in zip(y, do, strict=True)) if do is not None else 0
    if do is not None and np.shape(do) != np.shape(y):
        raise ValueError(f"do {np.shape(do)} is no gradient for a result {np.shape(y)}")
    return np.sum(y * do) if do is not None else 0


def random_cotangents(rng, y):
    def make(y):
        if not hasattr(y, "dtype") and not isinstance(y, Number):
            raise TypeError(f"f must give an array, or a tuple of arrays, not a {type(y).__name__}")
        shape, dtype = np.shape(y), np.asarray(y).dtype
        if dtype == object:
            return random_fractions(rng, shape)
        x = np.asarray(rng.standard_normal(shape))
        return x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x if dtype.kind == "f" else None
    return walk(make, y)


# --- arguments by name: of a named tuple, every leaf -------------------------------------------------------------------

def labelled(named):
    flat = {}
    for name, x in named.items():
        flat.update({f"{name}.{field}": part for field, part in x._asdict().items()} if hasattr(x, "_fields") else {name: x})
    return flat


def unlabelled(named, flat):
    return {name: type(x)(*(flat[f"{name}.{field}"] for field in x._fields)) if hasattr(x, "_fields") else flat[name] for name, x in named.items()}


def varying(named):
    """The labels of what has a gradient."""
    return [label for label, x in labelled(named).items() if getattr(getattr(x, "dtype", None), "kind", "") in ("f", "c", "O")]


def by_label(named, gradients, wanted):
    """The gradients that f_vjp gave, by label, after a look at their shapes."""
    if not isinstance(gradients, dict):
        gradients = gradients if type(gradients) in (tuple, list) else (gradients,)
        names = list(named) if len(gradients) == len(named) else [n for n in named if varying({n: named[n]})]
        if len(names) != len(gradients):
            raise ValueError(f"f_vjp gave {len(gradients)} gradients for the arguments {', '.join(names)}")
        gradients = dict(zip(names, gradients))
    got = labelled(gradients)
    for label, x in wanted.items():
        if label not in got:
            raise ValueError(f"f_vjp gave no gradient for {label}, only for {', '.join(gradients)}")
        if np.shape(got[label]) != x.shape:
            raise ValueError(f"f_vjp: the gradient of {label} {x.shape} has shape {np.shape(got[label])}")
    return {label: np.asarray(got[label]) for label in wanted}


def argument_names(f, count):
    """The names of f's first arguments, as far as they have any."""
    try:
        parameters = inspect.signature(f).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    return [names[n] if n < len(names) else f"argument {n}" for n in range(count)]


def describe(named):
    return ", ".join(f"{label} {x.dtype}" for label, x in labelled(named).items() if hasattr(x, "dtype"))


# --- a mechanism of the catalogue ------------------------------------------------------------------------------------

class Proof(NamedTuple):
    """The largest errors of the three gradients derived by hand, for one argument (or leaf of a state) and one proof."""
    argument: str
    proof: str
    loop_vjp: float
    matrix_vjp: float
    chunk_vjp: float

    @property
    def holds(self):
        return max(self[2:]) <= PROOFS[self.proof][1]


def check_mechanism(name):
    """One `Proof` for each argument and each proof that applies.

    It holds the largest error over all settings, with and without a state and a gradient of the final one.  Every proof differentiates
    `loop`, the definition; chunk_vjp works in blocks of 3.  KeyError for an unknown mechanism.
    """
    row = CATALOGUE[name]
    proofs = ["tape", *["exact dual"] * row.exact, "complex step" if row.analytic else "central differences"]
    errors = {}
    for options in settings(row):
        for proof in proofs:
            for state in True, False:
                for label, form, error in errors_of(row, options, proof, state):
                    found = errors.setdefault((label, proof), {})
                    found[form] = max(error, found.get(form, 0))
    return [Proof(label, proof, **errors[label, proof]) for label, proof in sorted(errors, key=lambda key: proofs.index(key[1]))]


def errors_of(row, options, proof, state):
    """(label, form, error) with and without a gradient of the final state."""
    rng = np.random.default_rng(0)
    for named in inputs(row, rng, proof == "exact dual", n=2 if state else 0):
        if not state:
            named["state"] = map_state(np.zeros_like, named["state"])        # what None stands for; with n = 0, an empty cache
        x = named if state else dict(named, state=None)
        call = lambda named: row.module.loop(**named, **options)
        do, dfinal_state = random_cotangents(rng, call(named))
        for dS in dfinal_state, None:
            wanted = prove(proof, call, named, (do, dS))
            for form, more in dict(loop_vjp={}, matrix_vjp={}, chunk_vjp=dict(chunk_size=3)).items():
                got = by_label(named, getattr(row.module, form)(do, **x, dfinal_state=dS, **options, **more), wanted)
                for label in wanted:
                    yield label, form, relative_error(got[label], wanted[label])


def inputs(row, rng, exact, n):
    """Random arguments; exact ones with a reset, and, since a reset hides every path that crosses it, without one."""
    if not exact:
        return [row.arguments(rng, 7, (2,), K=3, V=2, n=n)]
    x = exact_arguments(row, rng, 4, K=4, V=2, n=n)
    open_gates = {name: log(np.where(x[name] == -np.inf, Fraction(1, 3), np.exp(x[name]))) for name in gates(row)}
    return [x, {**x, **open_gates}] if open_gates else [x]
