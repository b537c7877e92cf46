"""Functions and feature maps of core: values by hand or from SciPy, gradients by complex step and by differences, types, extremes, fractions."""
from fractions import Fraction
import warnings

import numpy as np
import pytest
from scipy import special

from npattn.core import feature_maps, functions
from npattn.core.functions import (gated_rms_norm, gated_rms_norm_vjp, l2norm, l2norm_vjp, logsumexp, logsumexp_vjp, rms_norm, rms_norm_vjp, sigmoid,
                                   silu, silu_vjp, softmax, softmax_vjp, softplus, softplus_vjp)

ONE = ["softmax", "logsumexp", "sigmoid", "silu", "softplus", "l2norm"]                      # functions of x alone
NORMS = ["rms_norm", "gated_rms_norm"]
MAPS = ["identity", "elu_plus_one", "relu", "exp", "squared_relu", "softmax_pair", "taylor"]
RATIONAL = ["identity", "relu", "squared_relu", "taylor"]


def pair(name):
    module = feature_maps if name in MAPS else functions
    return getattr(module, name), getattr(module, name + "_vjp")


def arguments(name, shape=(3, 5), dtype=np.float64):
    """Random arguments, none of them near the kink at 0."""
    random = np.random.default_rng(5)
    shapes = dict(rms_norm=[shape, shape[-1:]], gated_rms_norm=[shape, shape, shape[-1:]]).get(name, [shape])
    return [(random.choice([-1, 1], s) * random.uniform(.05, 2, s)).astype(dtype) for s in shapes]


def gradients(name, dy, args):
    d = pair(name)[1](dy, *args)
    return d if isinstance(d, tuple) else (d,)


def by_complex_step(f, dy, args, i):
    """d sum(f dy) / d args[i], one entry at a time, exact but for rounding."""
    d = np.zeros(args[i].shape)
    for at in np.ndindex(d.shape):
        x = args[i].astype(complex)
        x[at] += 1e-30j
        d[at] = (f(*args[:i], x, *args[i + 1:]) * dy).sum().imag / 1e-30
    return d


def by_differences(f, dy, args, i, h):
    d = np.zeros(args[i].shape, args[i].dtype)
    for at in np.ndindex(d.shape):
        up, down = args[i].copy(), args[i].copy()
        up[at] += h
        down[at] -= h
        d[at] = ((f(*args[:i], up, *args[i + 1:]) - f(*args[:i], down, *args[i + 1:])) * dy).sum() / (2 * h)
    return d


def close(a, b, tolerance):
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= tolerance * np.abs(b).max(), (a, b)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- gradients ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ONE + NORMS + MAPS)
def test_gradients(name):
    f, args = pair(name)[0], arguments(name)
    for x in args:
        x.flags.writeable = False
    dy = np.random.default_rng(6).standard_normal(f(*args).shape)
    d = gradients(name, dy, args)
    for i in range(len(args)):
        close(d[i], by_complex_step(f, dy, args, i), 1e-14)
        close(d[i], by_differences(f, dy, args, i, 1e-5), 1e-8)


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "l2norm"])
def test_axis(name):
    f, f_vjp = pair(name)
    x, = arguments(name, (2, 3, 4))
    dy = np.random.default_rng(6).standard_normal(f(x, axis=1).shape)
    move = (lambda y: y) if name == "logsumexp" else (lambda y: np.moveaxis(y, 1, -1))
    assert np.allclose(move(f(x, axis=1)), f(np.moveaxis(x, 1, -1)), rtol=1e-15, atol=0)
    close(f_vjp(dy, x, axis=1), by_complex_step(lambda x: f(x, axis=1), dy, [x], 0), 1e-14)


@pytest.mark.parametrize("eps", [0, 1e-6, 1.])
@pytest.mark.parametrize("name", ["l2norm"] + NORMS)
def test_the_gradient_uses_the_same_eps(name, eps):
    f, f_vjp = pair(name)
    args = [1e-3 * x for x in arguments(name)]
    dy = np.random.default_rng(6).standard_normal(args[0].shape)
    d = f_vjp(dy, *args, eps=eps)
    d = d if isinstance(d, tuple) else (d,)
    for i in range(len(args)):
        close(d[i], by_complex_step(lambda *a: f(*a, eps=eps), dy, args, i), 1e-13)


def test_gradients_of_broadcast_arguments_are_summed_back():
    random = np.random.default_rng(7)
    x, z, w, dy = random.random((4, 1, 3)), random.random((1, 2, 3)), random.random((2, 1)), random.random((4, 2, 3))
    for f, f_vjp, args in ((rms_norm, rms_norm_vjp, [x, w]), (gated_rms_norm, gated_rms_norm_vjp, [x, z, w])):
        d = f_vjp(dy, *args)
        for i in range(len(args)):
            close(d[i], by_complex_step(f, dy, args, i), 1e-14)


# --- values ------------------------------------------------------------------------------------------------------

def test_values_by_hand():
    close(softmax(np.log([1., 2])), np.array([1 / 3, 2 / 3]), 1e-15)
    close(logsumexp(np.log([1., 2])), np.log(3.), 1e-15)
    close(silu(np.array([-1.])), np.array([-0.2689414213699951]), 1e-15)
    close(softplus(np.log([1., 3])), np.log([2., 4]), 1e-15)
    assert rms_norm(np.array([3., 3, -3]), np.zeros(3), eps=0).tolist() == [1, 1, -1]         # a stored weight of 0 is a factor of 1
    assert rms_norm(np.array([3., 3, -3]), np.array([-1., 0, 1]), eps=0).tolist() == [0, 1, -2]


@pytest.mark.parametrize("eps, norm", [(1e-6, .5 ** .5), (0, 1.), (1e-6 * 128, 129 ** -.5)])
def test_eps_is_inside_the_root(eps, norm):
    """128 entries, length 1e-3: 1e-6 inside the root halves the square; on the mean it would count 128 times, and give 0.088."""
    x = np.full(128, 1e-3 * 128 ** -.5)
    close(np.linalg.norm(l2norm(x, eps=eps)), np.float64(norm), 1e-14)
    if eps == 1e-6:
        close(rms_norm(x, np.zeros(128), eps=eps), np.full(128, 129 ** -.5), 1e-14)


def test_gradient_of_a_short_vector():
    """Length 1e-3, eps 1e-6: 1 / sqrt(2e-6) = 707 across the vector, half of that along it."""
    x = np.array([1e-3, 0])
    close(l2norm_vjp(np.array([1., 1]), x), np.array([.5, 1]) / 2e-6 ** .5, 1e-14)


def test_norm_before_gate():
    x, z = np.array([1., 2]), np.array([3., -3])
    n = x / 2.5 ** .5
    close(gated_rms_norm(x, z, np.array([1., 10]), eps=0), n * z / (1 + np.exp(-z)) * [1, 10], 1e-15)


@pytest.mark.parametrize("f, reference", [(softmax, lambda x: special.softmax(x, -1)), (logsumexp, lambda x: special.logsumexp(x, -1)),
                                          (sigmoid, special.expit), (silu, lambda x: x * special.expit(x)), (softplus, lambda x: np.logaddexp(0, x))])
def test_values_of_scipy(f, reference):
    x = 10 * np.random.default_rng(8).standard_normal((20, 50))
    np.testing.assert_allclose(f(x), reference(x), rtol=4e-15)


# --- the features ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("K", [1, 2, 3, 4, 16])
def test_taylor_is_the_second_order_of_the_exponential(K):
    q, k = np.random.default_rng(9).standard_normal((2, 5, K))
    s = q @ k.mT / K ** .5
    phi_q, phi_k = feature_maps.taylor(q), feature_maps.taylor(k)
    assert phi_q.shape == (5, 1 + K + K * (K + 3) // 2)
    close(phi_q @ phi_k.mT, 1 + s + s * s / 2, 1e-14)


def test_taylor_in_fractions():
    random = np.random.default_rng(10)
    for K, factors in ((1, (None, None)), (16, (None, None)), (4, (Fraction(1, 2), 1)), (9, (1, Fraction(1, 3)))):
        q, k = (fractions(random, (2, K)) for _ in range(2))
        s = q @ k.mT / Fraction(round(K ** .5))
        assert (feature_maps.taylor(q, factors[0]) @ feature_maps.taylor(k, factors[1]).mT == 1 + s + s * s / 2).all()
    for K in (0, 2, 4, 15):
        with pytest.raises(ValueError, match=rf"factor: K \*\* -0.25 is no fraction for K = {K}"):
            feature_maps.taylor(fractions(random, (2, K)))


@pytest.mark.parametrize("name", RATIONAL)
def test_rational_maps_in_fractions(name):
    """Equal to the float map entry by entry; central differences of a polynomial of degree two are its derivative, exactly."""
    f, f_vjp = pair(name)
    x = fractions(np.random.default_rng(11), (2, 16)) / 8
    y = f(x)
    dy = fractions(np.random.default_rng(12), y.shape)
    assert (y.astype(float) == f(x.astype(float))).all()
    assert all(isinstance(e, (Fraction, int)) for e in y.ravel())
    assert (f_vjp(dy, x) == by_differences(f, dy, [x], 0, Fraction(1, 1000))).all()


def fractions(random, shape):
    """Sixteenths between -2 and 2, none 0: floats hold them, and their products, without rounding."""
    x = [Fraction(int(n) * 2 + 1, 16) for n in random.integers(-16, 16, int(np.prod(shape)))]
    return np.array(x + [None], dtype=object)[:-1].reshape(shape)


def test_relu_has_the_derivative_0_at_0():
    x = np.array([-1., -0., 0, 1])
    assert feature_maps.relu_vjp(np.ones(4), x).tolist() == [0, 0, 0, 1]
    assert feature_maps.squared_relu_vjp(np.ones(4), x).tolist() == [0, 0, 0, 2]


def test_features_of_a_kernel_are_not_negative():
    x = np.random.default_rng(13).standard_normal((50, 8)) * 30
    for name in ("elu_plus_one", "relu", "exp", "squared_relu", "softmax_pair"):
        assert (pair(name)[0](x) >= 0).all()


def test_softmax_pair_is_two_distributions():
    y = feature_maps.softmax_pair(np.random.default_rng(13).standard_normal((5, 8)))
    close(y.reshape(5, 2, 8).sum(-1), np.ones((5, 2)), 1e-15)
    assert (np.argsort(y[:, :8]) == np.argsort(-y[:, 8:])).all()


# --- types and extremes ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, np.complex128])
@pytest.mark.parametrize("name", ONE + NORMS + MAPS)
def test_type_in_is_type_out(name, dtype):
    f, args = pair(name)[0], arguments(name)
    y, d = f(*args), gradients(name, np.ones(f(*args).shape), args)
    cast = [x.astype(dtype) for x in args]
    got, dgot = f(*cast), gradients(name, np.ones(y.shape, dtype), cast)
    tolerance = 40 * np.finfo(dtype).eps
    for a, b in zip((got, *dgot), (y, *d)):
        assert a.dtype == dtype
        assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max())


@pytest.mark.parametrize("name", ONE + NORMS + MAPS)
def test_nothing_at_all(name):
    """An empty batch, and an empty last axis: of nothing the sum is 0, its logarithm -inf, and taylor keeps its constant."""
    for shape in ((0, 4), (2, 0)):
        args = arguments(name, shape)
        y = pair(name)[0](*args)
        for d, x in zip(gradients(name, np.ones(y.shape), args), args):
            assert d.shape == x.shape
    expected = dict(logsumexp=[-np.inf] * 2, taylor=[[1.], [1.]])
    assert y.tolist() == expected.get(name, [[], []])


EXTREMES = [-np.inf, "-huge", -1e4, -1000, -100, -1, "-tiny", 0, "tiny", 1, 100, 1000, 1e4, "huge"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ONE + NORMS + ["identity", "elu_plus_one", "relu", "softmax_pair"])
def test_extremes_are_finite_and_silent(name, dtype):
    """-inf, half the largest and the smallest number, alone and together: no warning, no NaN, and finite wherever the function is."""
    huge, tiny = np.finfo(dtype).max / 2, np.finfo(dtype).smallest_subnormal
    values = np.array([{"huge": huge, "-huge": -huge, "tiny": tiny, "-tiny": -tiny}.get(e, e) for e in EXTREMES], dtype)
    rows = np.stack(np.broadcast_arrays(values[:, None], values), -1)                        # every pair
    if "norm" in name or name == "softmax_pair":
        rows = rows[np.isfinite(rows).all(-1)]                                               # a vector with an infinity has no direction
    args = [rows]
    if name in NORMS:
        args = [rows, *([np.clip(rows[::-1], -1e30, 1e30)] if "gated" in name else []), np.ones(2, dtype)]
    y = pair(name)[0](*args)
    assert y.dtype == dtype
    assert not np.isnan(y).any()
    if name not in ("identity", "logsumexp"):
        assert np.isfinite(y).all()
    if "gated" in name:                                                                      # 1e30 / sqrt(eps) is out of reach for float32
        args[1] = np.clip(args[1], -1e4, 1e4)
    assert all(np.isfinite(d).all() for d in gradients(name, np.ones(y.shape, dtype), args))


def test_extreme_values():
    inf, big = np.inf, np.array([-np.inf, -1000., 1000., np.inf])
    assert sigmoid(big).tolist() == [0, 0, 1, 1]
    assert silu(big).tolist() == [0, 0, 1000, inf]
    assert softplus(big).tolist() == [0, 0, 1000, inf]
    assert silu_vjp(np.ones(4), big).tolist() == [0, 0, 1, 1]
    assert softplus_vjp(np.ones(4), big).tolist() == [0, 0, 1, 1]
    assert softmax(np.array([[-inf, 0], [-inf, -inf], [1e308, -7e307]])).tolist() == [[0, 1], [0, 0], [1, 0]]
    assert logsumexp(np.array([[-inf, 3], [-inf, -inf], [inf, 0], [-1000, -inf]])).tolist() == [3, -inf, inf, -1000]
    assert softmax_vjp(np.array([5., 7]), np.full(2, -inf)).tolist() == [0, 0]
    assert logsumexp_vjp(np.array(5.), np.full(2, -inf)).tolist() == [0, 0]
    close(l2norm(np.float32([3e30, 4e30])), np.float32([.6, .8]), 1e-6)                      # the squares overflow
    close(l2norm(np.array([3e-320, 4e-320]), eps=0), np.array([.6, .8]), 1e-3)                # the squares vanish
    assert l2norm(np.zeros(3)).tolist() == l2norm(np.zeros(3), eps=0).tolist() == [0, 0, 0]
    close(l2norm_vjp(np.ones(3), np.zeros(3)), np.full(3, 1e3), 1e-15)
    assert l2norm_vjp(np.ones(3), np.zeros(3), eps=0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ONE + ["elu_plus_one", "relu"])
def test_nan_stays_and_is_silent(name):
    assert np.isnan(pair(name)[0](np.array([1., np.nan]))).any()


@pytest.mark.parametrize("f", [softmax, l2norm, feature_maps.softmax_pair])
def test_without_a_limit_there_is_no_value(f):
    assert np.isnan(f(np.array([1., np.inf]))).any()


@pytest.mark.parametrize("f", [sigmoid, silu, softplus, feature_maps.elu_plus_one])
def test_complex_arguments_keep_small_values(f):
    """One formula on both sides: a complex argument gives what the real one does, to the last digits, far from 0 too."""
    x = np.array([-700., -50, -1e-3, 1e-3, 50, 700])
    y = f(x.astype(complex))
    np.testing.assert_allclose(y.real, f(x), rtol=4e-15)
    assert (y.imag == 0).all()
    h = 0.3j                                                                                 # off the real axis: against the definition
    z = np.array([-2., -.5, .5, 2]) + h
    definition = {sigmoid: lambda z: 1 / (1 + np.exp(-z)), silu: lambda z: z / (1 + np.exp(-z)), softplus: lambda z: np.log(1 + np.exp(z)),
                  feature_maps.elu_plus_one: lambda z: np.where(z.real > 0, z + 1, np.exp(z))}[f]
    np.testing.assert_allclose(f(z), definition(z), rtol=4e-15)
