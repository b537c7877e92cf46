"""Gradients from values of the function alone: the complex step, central differences, and which of them applies."""
import warnings

import numpy as np


def complex_step(f, *arrays):
    """The gradient of a scalar f, analytic and real, with respect to every array: d f / d x = imag f(x + i h) / h.

    >>> complex_step(lambda x: np.exp(x[0]) * x[1], np.array([0., 3.]))[0].tolist()
    [3.0, 1.0]
    """
    return entry_by_entry(f, arrays, lambda at, x: at(1e-30j).imag / 1e-30)


def central_differences(f, *arrays):
    """The gradient of a scalar f with respect to every array: (f(x + h) - f(x - h)) / 2h.

    >>> central_differences(lambda x: abs(x).sum(), np.array([-2., 3.]))[0].round(8).tolist()
    [-1.0, 1.0]
    """
    def quotient(at, x):
        h = 6e-6 * max(1, abs(x)) if np.isfinite(x) else 6e-6        # the cube root of the rounding error
        return (at(h) - at(-h)) / (2 * h)
    return entry_by_entry(f, arrays, quotient)


def entry_by_entry(f, arrays, derivative):
    """`derivative(at, entry)` for every entry of every array; at(h) is f with h added to that entry."""
    def one(n, i):
        def at(h):
            step = np.zeros(arrays[n].shape, np.result_type(h))
            step[i] = h
            y = f(*arrays[:n], arrays[n] + step, *arrays[n + 1:])
            if np.shape(y) != ():
                raise ValueError(f"f must give a single number, not an array {np.shape(y)}")
            return y
        return derivative(at, arrays[n][i])
    return tuple(np.array([one(n, i) for i in np.ndindex(x.shape)]).reshape(x.shape) for n, x in enumerate(arrays))


def is_analytic(f, *arrays):
    """Does the complex step apply?

    f accepts complex numbers, agrees with itself on real ones, and along one direction the step gives what differences give.
    """
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(x.shape) for x in arrays]
    moved = lambda h: f(*(x + h * d for x, d in zip(arrays, directions)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            y, step = moved(0j), moved(1e-30j).imag / 1e-30
        except (TypeError, ValueError, np.exceptions.ComplexWarning):
            return False
    try:
        difference, known = (moved(1e-6) - moved(-1e-6)) / 2e-6, moved(0)
    except ValueError:                                               # the step left the domain, as a gate of 0 does: nothing speaks against it
        return True
    return bool(np.isclose(y, known, rtol=1e-9, atol=1e-12) and np.isclose(step, difference, rtol=1e-4, atol=1e-6 * (1 + abs(known))))
