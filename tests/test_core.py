"""What mechanisms stand on, at every size: decays and the triangular inverse against their definitions, inner and outer products against plain ones."""
import numpy as np
import pytest
from scipy.linalg import solve_triangular

from npattn.core.arrays import LARGE, dot, outer
from npattn.core.decay import crossing, products
from npattn.core.triangular import inverse
from npattn.proof import random_factors, random_fractions

SIZES = [*range(0, 36), 40, 47, 63, 64, 65, 80, 96, 100, 127, 128, 129]      # around every number of blocks, of 4 and of 8 tokens


def by_definition(f):
    """D, a, z, A of `decay`, one product after the other."""
    T, kind = len(f), f.dtype
    D, a, z, A = np.zeros((T, T), kind), np.zeros((T, 1), kind), np.zeros((T, 1), kind), np.ones((1, 1), kind)
    for i in range(T):
        for j in range(i + 1):
            D[i, j] = f[j + 1:i + 1].prod()
        a[i], z[i] = f[:i + 1].prod(), f[i + 1:].prod()
    A[0, 0] = f.prod()
    return D, a, z, A


@pytest.mark.parametrize("T", [T for T in SIZES if T <= 40])
def test_decays_in_fractions(T):
    f = random_factors(np.random.default_rng(T), (T,))
    if T > 2:
        f[T // 2] *= 0                                                       # a reset
    for got, wanted in zip(products(f), by_definition(f), strict=True):
        assert got.shape == wanted.shape and (got == wanted).all()


@pytest.mark.parametrize("T", SIZES)
def test_decays_of_floats(T):
    f = np.random.default_rng(T).uniform(0.5, 1, (2, T))
    f[1, T // 3:T // 3 + 1] = 0
    before = f.copy()
    got = products(f)
    for head in range(2):
        for x, wanted in zip(got, by_definition(f[head]), strict=True):
            assert np.allclose(x[head], wanted, rtol=1e-13, atol=0) and ((x[head] == 0) == (wanted == 0)).all()
    assert (f == before).all()


@pytest.mark.parametrize("T", [1, 2, 7, 9, 20])
def test_crossings_in_fractions(T):
    rng = np.random.default_rng(T)
    W, first, last, through = (random_fractions(rng, shape) for shape in ((T, T), (T,), (T,), (1,)))
    wanted = [sum(W[i, j] for i in range(t, T) for j in range(t)) + first[t:].sum() + last[:t].sum() + through[0] for t in range(T)]
    assert (crossing(W, first, last, through) == wanted).all()
    floats = crossing(*(x.astype(float) for x in (W, first, last, through)))
    assert np.allclose(floats, np.array(wanted, float), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("C", [C for C in SIZES if C <= 20])
def test_inverse_in_fractions(C):
    L = random_fractions(np.random.default_rng(C), (C, C))                   # also on and above the diagonal, which is not read
    unit = np.array([[L[i, j] if i > j else int(i == j) for j in range(C)] for i in range(C)], object).reshape(C, C)
    assert (unit @ inverse(L) == np.array([[int(i == j) for j in range(C)] for i in range(C)], object).reshape(C, C)).all()


@pytest.mark.parametrize("C", SIZES)
def test_inverse_of_floats(C):
    L = np.random.default_rng(C).standard_normal((2, C, C)) / max(C, 1) ** 0.5
    L[0] += np.triu(np.full((C, C), np.nan))
    before, X = L.copy(), inverse(L)
    for head in range(2):
        wanted = solve_triangular(np.tril(L[head], -1) + np.eye(C), np.eye(C), lower=True, unit_diagonal=True) if C else np.eye(0)
        assert np.abs(X[head] - wanted).max(initial=0) <= 1e-13 * np.abs(wanted).max(initial=1)
    assert np.array_equal(L, before, equal_nan=True)


@pytest.mark.parametrize("types", [("f4", "f4"), ("f8", "f8"), ("f4", "f8"), ("c16", "f8"), ("f2", "f2")])
@pytest.mark.parametrize("K, V", [(1, LARGE), (LARGE, 1), (64, 64), (63, 64), (65, 130), (3, 2), (0, 5)])
def test_outer_and_inner_products(K, V, types):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1, 1, K)).astype(types[0]), rng.standard_normal((3, 1, V)).astype(types[1])
    got = outer(x, y)
    assert got.dtype == np.result_type(x, y) and np.array_equal(got, x.mT * y)           # bit for bit: one product of two numbers is one rounding
    p, q = rng.standard_normal((2, 3, K)).astype(types[0]), rng.standard_normal((3, K)).astype(types[1])
    exact = (p.astype("c16") * q.astype("c16")).sum(-1)                      # nothing conjugated
    assert dot(p, q).dtype == got.dtype and np.allclose(dot(p, q), exact, rtol=0, atol={"e": 0.5, "f": 1e-4}.get(got.dtype.char, 1e-12))
