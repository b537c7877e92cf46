"""How far a result is from what it should be: one number, and where."""
from typing import NamedTuple

import numpy as np

from ..core.states import leaves


class Distance(NamedTuple):
    """`error` is relative to the largest wanted value; inf for a wrong shape or type, for NaN, and for fractions that are not equal."""
    error: float
    what: str


def distance(what, got, wanted):
    """The largest distance between two results: arrays, states, (o, state) pairs, or dicts of gradients.

    >>> distance("o", np.array([1., 2.]), np.array([1., 4.]))
    Distance(error=0.5, what='o')
    >>> distance("o", np.ones(2), np.ones(3))
    Distance(error=inf, what='o: float64 (2,), not float64 (3,)')
    """
    if isinstance(wanted, dict):
        if set(got) != set(wanted):
            return Distance(np.inf, f"{what}: {sorted(got)}, not {sorted(wanted)}")
        return worst(distance(f"{what}, {name}", got[name], wanted[name]) for name in wanted)
    if isinstance(wanted, tuple):
        if type(got) is not type(wanted) or len(got) != len(wanted):
            return Distance(np.inf, f"{what}: {type(got).__name__}, not {type(wanted).__name__}")
        names = getattr(wanted, "_fields", ("o", "state"))
        return worst(distance(f"{what}, {name}", x, y) for name, x, y in zip(names, leaves(got), leaves(wanted)))
    if not isinstance(wanted, np.ndarray):
        return Distance(0.0 if got == wanted else np.inf, what + ("" if got == wanted else f": {got}, not {wanted}"))
    if getattr(got, "shape", None) != wanted.shape or got.dtype != wanted.dtype:
        return Distance(np.inf, f"{what}: {describe(got)}, not {describe(wanted)}")
    error = relative_error(got, wanted)
    return Distance(error, what + (f": {infinitely_far(got, wanted)}" if error == np.inf else ""))


def infinitely_far(got, wanted):
    """Why two arrays of one shape have no distance that is a number."""
    if got.dtype == object:
        return f"{np.count_nonzero(got != wanted)} of {wanted.size} fractions differ"
    return "NaN" if np.isnan(got).any() else "NaN is wanted" if np.isnan(wanted).any() else "an infinity that is not the other's"


def whether(holds, what, otherwise):
    """The Distance of a condition: `what` where it holds, the sentence `otherwise` where it does not."""
    return Distance(0.0, what) if holds else Distance(np.inf, otherwise)


def relative_error(got, wanted):
    """max |got - wanted| / max |wanted| (over 1 if all is zero); equal infinities are equal and measure nothing, NaN is infinitely wrong."""
    differ = got != wanted
    if not differ.any():
        return 0.0
    if got.dtype == object:
        return np.inf
    error = np.abs(got[differ] - wanted[differ]).max() / (np.abs(wanted[np.isfinite(wanted)]).max(initial=0) or 1)
    return np.inf if np.isnan(error) else error.item()


def worst(distances):
    """The largest of some distances."""
    return max(distances, key=lambda d: d.error, default=Distance(0.0, "nothing to compare"))


def describe(x):
    return f"{x.dtype} {x.shape}" if hasattr(x, "dtype") else type(x).__name__


def finite(what, *arrays):
    return whether(all(np.isfinite(x).all() for x in arrays), f"{what}: finite", f"{what}: not finite")
