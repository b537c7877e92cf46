"""The tape: every supported function against the complex step, exact derivatives of fractions, forms as they stand, and what it refuses."""
from fractions import Fraction as F
from typing import Any, NamedTuple
import inspect
import re

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
import pytest

from npattn import delta_rule, linear_attention
from npattn.proof import SUPPORTED, derivatives, dual_gradient, fractions, grad, log, random_factors, random_fractions, tape, vjp

rng = np.random.default_rng(1)
A, B, W, P = (rng.uniform(.2, .9, shape) for shape in ((3, 4), (3, 4), (4, 2), (2, 3, 4)))
MASK, C = np.array([True, False, True, True]), rng.standard_normal((3, 4))

# One example or more for each supported function: a function of arrays, and the arrays.
EXAMPLES = {
    "positive": [(lambda x: +x, A)], "negative": [(lambda x: -x, A)], "reciprocal": [(np.reciprocal, A)], "square": [(np.square, A)],
    "sqrt": [(np.sqrt, A)], "exp": [(np.exp, A)], "expm1": [(np.expm1, A)], "log": [(np.log, A)], "log1p": [(np.log1p, A)],
    "sin": [(np.sin, A)], "cos": [(np.cos, A)], "tanh": [(np.tanh, A)], "arctanh": [(np.arctanh, A)],
    "add": [(lambda x, y: x + y, A, A[0]), (lambda x: 2 + x + C, A[:, :1])], "subtract": [(lambda x, y: x - y, A[:1], B), (lambda x: 1 - x, A)],
    "multiply": [(lambda x, y: x * y, A, P), (lambda x: C * x, A[0]), (lambda x: x * x, A)],
    "divide": [(lambda x, y: x / y, P, A), (lambda x: 2 / x, A), (lambda x: x / C, A[:, :1])],
    "power": [(lambda x: x ** 3, A), (lambda x: x ** -1, A), (lambda x: x ** 0.5, A), (lambda x: x ** 0, A), (lambda x, y: x ** y, A, B), (lambda y: 2. ** y, B)],
    "matmul": [(np.matmul, A, W), (np.matmul, P, W), (np.matmul, A[:1], P.mT), (lambda x, w: x @ w, A[0], W), (lambda x, y: x @ y, P, A[0]),
               (lambda x, y: x @ y, A[0], B[0]), (lambda x, y: x @ y, A[0], P.mT), (lambda w: C @ w, W)],
    "where": [(lambda x, y: np.where(MASK, x, y), A, B[:, :1]), (lambda x: np.where(x > .5, x * x, 1), A), (lambda x: np.where(MASK[:, None], 0, x), A[0])],
    "sum": [(np.sum, A), (lambda x: x.sum(-1), P), (lambda x: x.sum((0, -1), keepdims=True), P), (lambda x: np.sum(x, axis=1), P)],
    "mean": [(np.mean, A), (lambda x: x.mean(-1, keepdims=True), P), (lambda x: x.mean((0, 1)), P)],
    "prod": [(np.prod, A), (lambda x: x.prod(-1, keepdims=True), P), (lambda x: x.prod((0, 2)), P), (lambda x: (x * np.array([0, 1, 1, 1])).prod(-1), A),
             (lambda x: (x * np.array([0, 1, 1, 0])).prod(-1), A)],
    "cumsum": [(lambda x: x.cumsum(0), A), (np.cumsum, A), (lambda x: np.cumsum(x, axis=-1), P)],
    "cumprod": [(lambda x: x.cumprod(0), A), (np.cumprod, A), (lambda x: np.cumprod(x * np.array([1, 0, 1, 0]), axis=-1), P)],
    "reshape": [(lambda x: x.reshape(2, 6), A), (lambda x: np.reshape(x, (4, -1)), A), (lambda x: x.reshape((12,)), A)],
    "ravel": [(np.ravel, P)], "swapaxes": [(lambda x: x.swapaxes(0, -1), P)], "moveaxis": [(lambda x: np.moveaxis(x, 0, -1), P)],
    "transpose": [(lambda x: x.T, P), (lambda x: x.transpose(1, 0, 2), P), (lambda x: np.transpose(x, (2, 0, 1)), P), (lambda x: x.transpose(), P)],
    "matrix_transpose": [(lambda x: x.mT, P)], "expand_dims": [(lambda x: np.expand_dims(x, (0, 2)), A)], "squeeze": [(lambda x: x[:1].squeeze(0), A)],
    "flip": [(np.flip, A), (lambda x: np.flip(x, -1), A)], "roll": [(lambda x: np.roll(x, 2, axis=-1), A)],
    "repeat": [(lambda x: x.repeat(3, axis=0), A), (lambda x: np.repeat(x, [1, 2, 0, 3], axis=1), A)], "tile": [(lambda x: np.tile(x, (2, 3)), A)],
    "take": [(lambda x: np.take(x, [0, 2, 2], 0), A), (lambda x: x.take(range(2), -1), A)],
    "take_along_axis": [(lambda x: np.take_along_axis(x, np.argsort(x, -1)[:, :2], -1), A)],
    "diagonal": [(lambda x: np.diagonal(x, axis1=-2, axis2=-1), P), (lambda x: x.diagonal(1), A)],
    "broadcast_to": [(lambda x: np.broadcast_to(x, (2, 3, 4)), A[:, :1])], "copy": [(lambda x: x.copy(), A)],
    "tril": [(np.tril, P), (lambda x: np.tril(x, -1), A)], "triu": [(lambda x: np.triu(x, 1), A)],
    "concatenate": [(lambda x, y: np.concatenate([x, C, y, x], axis=0), A, B), (lambda x: np.concatenate((C, x), -1), A)],
    "stack": [(lambda x, y: np.stack([x, y, C], axis=1), A, B)],
    "split": [(lambda x: np.split(x, [1, 3], axis=-1)[1], A), (lambda x: sum(np.split(x, 2, -1)), A)],
    "sliding_window_view": [(lambda x: sliding_window_view(x, 3, axis=-1), A)],
    "max": [(np.max, A), (lambda x: x.max(-1, keepdims=True), P)], "min": [(lambda x: x.min((0, 1)), P)],
    "maximum": [(np.maximum, A, B), (lambda x: np.maximum(x, .5), A)], "minimum": [(np.minimum, A, B[0])],
    "logaddexp": [(np.logaddexp, A, B), (lambda x: np.logaddexp(0, x), A)], "absolute": [(lambda x: abs(x - .5), A)],
    "indexing": [(lambda x: x[..., 1:, None, :], P), (lambda x: x[1], A), (lambda x: x[..., 0], A[0]), (lambda x: x[[0, 2, 2]], A), (lambda x: x[:, MASK], A),
                 (lambda x: x[np.array([0, 0]), [1, 1]], A), (lambda x: sum(row for row in x), A), (lambda x: x[None, ::-2], A)],
}
NO_COMPLEX_STEP = {"logaddexp", "absolute"}                          # NumPy has no complex one; not analytic


def by_steps(f, arrays, complex_step):
    """The gradients, entry by entry, by the complex step or by central differences."""
    h, gradients = 1e-30 if complex_step else 1e-6, []
    for n, x in enumerate(arrays):
        d = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[i] = h
            at = lambda z: f(*arrays[:n], z, *arrays[n + 1:])
            d[i] = at(x + 1j * step).imag / h if complex_step else (at(x + step) - at(x - step)) / (2 * h)
        gradients.append(d)
    return gradients


def weigh(f, *arrays):
    """f, weighed with fixed numbers so that it gives one number."""
    w = np.random.default_rng(2).standard_normal(np.shape(f(*arrays)))
    return lambda *arrays: (f(*arrays) * w).sum()


@pytest.mark.parametrize("name", EXAMPLES)
def test_supported_function(name):
    for f, *arrays in EXAMPLES[name]:
        scalar = weigh(f, *arrays)
        y, pull = vjp(f, *arrays)
        assert type(y) is np.ndarray and np.array_equal(y, f(*arrays))
        for got, want, x in zip(grad(scalar)(*arrays), by_steps(scalar, arrays, name not in NO_COMPLEX_STEP), arrays, strict=True):
            assert got.shape == x.shape and got.dtype == x.dtype
            np.testing.assert_allclose(got, want, rtol=1e-12 if name not in NO_COMPLEX_STEP else 1e-8, atol=1e-13)


def test_the_documented_list_is_the_supported_one():
    doc = inspect.getdoc(tape)
    differentiated, plain = (re.search(pattern, doc, re.S)[1].split() for pattern in (r"Differentiated: (.*?), and indexing", r"as plain arrays: (.*?)\.\n"))
    assert tuple(differentiated) == SUPPORTED == tuple(sorted(EXAMPLES.keys() - {"indexing"}))
    assert plain == sorted(f.__name__ for f in derivatives.PLAIN)


def test_what_carries_no_gradient_is_a_plain_array():
    seen = {}

    def f(x):
        for function in derivatives.PLAIN:
            y = function(x, x) if function in {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.logical_and,
                                               np.logical_or, np.array_equal} else function(x, 2) if function is np.full_like else function(x)
            seen[function.__name__] = y
        seen["method"] = x.argmax(-1), (x > .5).any(), x.all(), x.argsort(-1)
        return x.sum()

    grad(f)(A)
    assert not any(isinstance(y, tape.Traced) for y in seen.values()) and seen["shape"] == (3, 4) and seen["ndim"] == 2 and seen["size"] == 12
    assert seen["result_type"] == float and (seen["argsort"] == A.argsort()).all() and (seen["ones_like"] == np.ones((3, 4))).all()
    assert (seen["method"][0] == A.argmax(-1)).all() and seen["method"][1:3] == (True, True)


# --- exact, complex, long -----------------------------------------------------------------------------------------

def rational(a, b, g):
    """A bit of everything that fractions allow."""
    f = np.exp(np.cumsum(g))
    d = np.tril(np.cumprod(np.where(np.tri(3, k=-1, dtype=bool), f[:, None], 1), axis=-2))
    s = d @ (a * f[:, None]) / (2 + b[..., None] * b[..., None]) + b.mean() * np.stack([a[..., 0], a[..., 1]], -1) ** 2
    return np.concatenate([s, np.maximum(a, 0)[1:] - a.max(0)], axis=-2).prod(-1), (b - f).sum()


def test_exact_in_fractions():
    random = np.random.default_rng(3)
    arrays = random_fractions(random, (3, 2)), random_fractions(random, 3), log(random_factors(random, 3))
    (y, z), pull = vjp(rational, *arrays)
    assert (y == rational(*arrays)[0]).all() and z == rational(*arrays)[1]
    w = random_fractions(random, 5)
    want = dual_gradient(lambda *x: (rational(*x)[0] * w).sum() + 3 * rational(*x)[1], *arrays)
    got = pull((w, fractions(3)))
    for x, y in zip(got, want, strict=True):
        assert x.dtype == object and (x == y).all() and all(type(e) is F for e in x.flat)


def test_complex_numbers_are_transposed_never_conjugated():
    x, w = A + 1j * B, W * (1 - 2j)
    got = vjp(lambda x: np.exp(x) @ w, x)[1](np.full((3, 2), 1 + 1j))[0]
    np.testing.assert_allclose(got, np.exp(x) * ((1 + 1j) * w.sum(-1)), rtol=1e-14)         # no conjugate anywhere
    assert vjp(lambda x: x * 1j, A)[1](np.ones((3, 4)))[0].dtype == complex                 # a complex gradient of a real array stays complex
    with pytest.raises(TypeError, match="absolute of a complex number is not holomorphic"):
        vjp(abs, x)


def test_float32_stays():
    x = A.astype(np.float32)
    y, pull = vjp(lambda x: np.sqrt(x ** 2 / 2 + 1).mean(-1), x)
    assert y.dtype == np.float32 and pull(np.ones(3))[0].dtype == np.float32


def test_a_loop_of_5000_tokens():
    def last(x, a):
        s = np.zeros((), x.dtype)
        for t in range(5000):
            s = a * s + x[t]
        return s

    dx, da = grad(last)(np.ones(5000), np.array(.999))
    np.testing.assert_allclose(dx, .999 ** np.arange(4999, -1, -1), rtol=1e-10)
    np.testing.assert_allclose(da, (np.arange(1, 5000) * .999 ** np.arange(4999)).sum(), rtol=1e-10)       # sum of n a^(n-1)


# --- selections -----------------------------------------------------------------------------------------------------

def test_what_is_not_selected_gets_zero_and_no_nan():
    x = np.array([-np.inf, 1., np.inf, -2])
    with np.errstate(all="ignore"):
        (d,) = grad(lambda x: np.where(np.isfinite(x), np.where(np.isfinite(x), x, 0) ** 2, x * 0).sum())(x)
        assert d.tolist() == [0, 2, 0, -4]
        assert vjp(lambda x: np.maximum(x, 0), x)[1](np.array([np.inf, 1, 1, np.nan]))[0].tolist() == [0, 1, 1, 0]
        assert vjp(lambda x: x[:2].max(), x)[1](np.array(np.inf))[0].tolist() == [0, np.inf, 0, 0]
    assert grad(lambda g: np.exp(g).prod())(np.array([-np.inf, 0., 0]))[0].tolist() == [0, 0, 0]            # a reset
    assert grad(lambda x: np.logaddexp(x[0], x[1:]).sum())(np.array([-np.inf, -np.inf, 1]))[0].tolist() == [0, 0, 1]


def test_a_tie_is_shared_evenly():
    x, y = np.array([1., 2, 2]), np.array([1., 1, 3])
    assert [d.tolist() for d in grad(lambda x, y: np.maximum(x, y).sum())(x, y)] == [[.5, 1, 0], [.5, 0, 1]]
    assert [d.tolist() for d in grad(lambda x, y: np.minimum(x, y).sum())(x, y)] == [[.5, 0, 1], [.5, 1, 0]]
    assert grad(lambda x: x.max())(x)[0].tolist() == [0, .5, .5] and grad(lambda x: x.max())(fractions([1, 2, 2]))[0].tolist() == [0, F(1, 2), F(1, 2)]


# --- results and arguments of any kind ------------------------------------------------------------------------------

class Pair(NamedTuple):
    a: Any
    b: Any


def test_nested_results_arguments_and_cotangents():
    def f(x, pair):
        return x * pair.b, Pair(pair.a.sum(), (x, None, np.array(7.)))

    x, pair = np.array([1., 2]), Pair(np.array([3., 4]), np.array(5.))
    y, pull = vjp(f, x, pair)
    assert type(y[1]) is Pair and y[0].tolist() == [5, 10] and y[1].a == 7 and y[1].b[0] is x and y[1].b[1:] == (None, 7)
    dx, dpair = pull((np.array([1., 10]), Pair(np.array(2.), (np.array([100., 0]), None, np.array(1.)))))
    assert type(dpair) is Pair and dx.tolist() == [105, 50] and dpair.a.tolist() == [2, 2] and dpair.b == 21
    dx, dpair = pull((None, None))                                   # and once more: pull keeps nothing
    assert dx.tolist() == [0, 0] and dpair.a.tolist() == [0, 0] and dpair.b == 0 and dx.dtype == float


def test_no_tokens():
    y, pull = vjp(lambda x: (x @ W).sum(0), A[:0])
    assert y.tolist() == [0, 0] and pull(np.ones(2))[0].shape == (0, 4)


# --- refusals -------------------------------------------------------------------------------------------------------

def assign(x):
    y = np.zeros(A.shape)
    y[0] = x[0]


def increment(x):
    x += 1


@pytest.mark.parametrize("f, message", [
    (np.linalg.inv, r"does not support numpy\.linalg\.inv"), (lambda x: np.gradient(x), r"numpy\.gradient"), (np.floor, r"numpy\.floor"),
    (np.add.reduce, r"numpy\.add\.reduce"), (lambda x: np.sum(x, where=MASK), r"numpy\.sum with where="), (np.conj, r"numpy\.conjugate"),
    (lambda x: np.exp(x, out=np.zeros(A.shape)), r"numpy\.exp with out="), (increment, r"numpy\.add with out="),
    (lambda x: np.concatenate([x], dtype=complex), r"numpy\.concatenate with dtype="), (assign, "cannot become a NumPy array, nor be assigned into one"),
    (lambda x: x.__setitem__(0, 1), "cannot be assigned into"), (np.asarray, "cannot become a NumPy array"),
])
def test_unsupported_is_named(f, message):
    with pytest.raises(TypeError, match=message):
        vjp(f, A)


def test_wrong_use_is_named():
    for x in (np.arange(3), [1., 2.], np.array([True]), 1.0):
        with pytest.raises(TypeError, match="arrays must be NumPy arrays of floats"):
            vjp(np.sum, x)
    with pytest.raises(ValueError, match=r"single number, not an array \(3, 4\)"):
        grad(np.exp)(A)
    with pytest.raises(ValueError, match=r"a cotangent \(4,\) for a result \(3, 4\)"):
        vjp(np.exp, A)[1](A[0])
    with pytest.raises(ValueError, match="f gives 2 results, so there must be 2 cotangents"):
        vjp(lambda x: (x, x), A)[1]((A,))
    with pytest.raises(AttributeError, match="astype"):
        vjp(lambda x: x.astype(complex), A)


def test_truth_length_and_text():
    def f(x):
        assert len(x) == 3 and repr(x[0, 0] * 0 + 1) == "Traced(array(1.))" and x[0, 0] and not x[0, 0] * 0 and isinstance(x.T, tape.Traced)
        return x.real.sum()

    assert (grad(f)(A)[0] == 1).all()


def test_loops_with_large_outer_products():
    """One factor traced, the other not: loops take BLAS for large plain ones (core.arrays.outer)."""
    x = np.random.default_rng(0).standard_normal((3, 64))
    for name, f in dict(v=lambda y: linear_attention.loop(x, x, y)[0], k=lambda y: linear_attention.loop(x, y, x)[0]).items():
        y, pull = vjp(f, x)
        assert np.allclose(y, linear_attention.matrix(x, x, x)[0], rtol=1e-12)
        assert np.allclose(pull(y)[0], linear_attention.matrix_vjp(y, x, x, x)[name], rtol=1e-12)


def test_views_by_strides_are_refused():
    x = np.ones((3, 2))
    with pytest.raises(TypeError, match="the tape: a traced array"):
        vjp(lambda beta: delta_rule.matrix(x, x, x, beta=beta)[0], np.ones(3))
