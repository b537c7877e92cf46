"""Dual numbers: derivatives by hand, exact in fractions; the rules of calculus; unchanged NumPy code."""
from fractions import Fraction as F
import operator

import numpy as np
import pytest

from npattn.proof import Dual, Log, directional_derivative, dual_gradient, fractions, log

x, y = Dual(F(2, 3), 5), Dual(F(-1, 2), 7)


def parts(d):
    return d.value, d.derivative


@pytest.mark.parametrize("result, value, derivative", [
    (x + y, F(1, 6), 12), (x - y, F(7, 6), -2), (x * y, F(-1, 3), F(13, 6)), (x / y, F(-4, 3), (5 + F(4, 3) * 7) / F(-1, 2)),
    (x + 1, F(5, 3), 5), (1 + x, F(5, 3), 5), (x - 1, F(-1, 3), 5), (1 - x, F(1, 3), -5), (x * 3, 2, 15), (F(3) * x, 2, 15),
    (x / 2, F(1, 3), F(5, 2)), (1 / x, F(3, 2), F(-45, 4)), (-x, F(-2, 3), -5), (+x, F(2, 3), 5),
    (x ** 3, F(8, 27), 3 * F(4, 9) * 5), (x ** -1, F(3, 2), F(-45, 4)), (x ** 0, 1, 0), (Dual(F(0), 5) ** 0, 1, 0), (x ** np.int64(2), F(4, 9), F(20, 3)),
    (Dual(1, 1) / 2, F(1, 2), F(1, 2)), (1 / Dual(2, 1), F(1, 2), F(-1, 4)),               # integers have a fraction as their quotient
])
def test_rules(result, value, derivative):
    assert parts(result) == (value, derivative)
    assert not isinstance(result.value, float) and not isinstance(result.derivative, float)


def test_compares_by_value():
    assert x == Dual(F(2, 3), 0) == F(2, 3) and x != y and x > y and y < 0 <= x and x >= x and x <= x and 1 > x
    assert bool(x) and not bool(Dual(0, 1)) and max(y, x) is x
    assert repr(x) == "2/3 + 5 d"
    with pytest.raises(TypeError):
        hash(x)


def test_a_gate_and_its_exponential():
    g = Dual(Log("1/3"), F(2))
    assert parts(g.exp()) == (F(1, 3), F(2, 3)) and parts((g + g).exp()) == (F(1, 9), F(4, 9))
    assert parts((2 * g).exp()) == parts((g * 2).exp()) == (F(1, 9), F(4, 9)) and parts((-g).exp()) == (3, -6)
    assert parts(Dual(Log(0), F(1)).exp()) == (0, 0) and parts((2 * Dual(Log(0), F(1))).exp()) == (0, 0)       # a reset: nothing crosses it
    assert g < 0 and Dual(Log(1), 1) == 0 and not Dual(Log(1), 1) > 0
    assert parts(Dual(0.0, 3.0).exp()) == (1, 3) and parts(Dual(0j, 3j).exp()) == (1, 3j)
    with pytest.raises(TypeError, match="exp of 1/2 is no fraction"):
        np.exp(np.array([Dual(F(1, 2), 1)], dtype=object))


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge, operator.eq, operator.ne])
@pytest.mark.parametrize("dtype", [object, float])
def test_mixes_with_arrays_on_either_side(op, dtype):
    a = np.array([1, 2], dtype)
    for result, single in ((op(x, a), lambda e: op(x, e)), (op(a, x), lambda e: op(e, x))):
        assert isinstance(result, np.ndarray) and result.shape == (2,)
        for got, entry in zip(result, a):
            want = single(entry)
            assert parts(got) == parts(want) if isinstance(want, Dual) else got == want


def test_directional_derivative_of_unchanged_numpy_code():
    a, b = fractions([[1, 2], ["1/2", -1]]), fractions([[0, 1], [3, "1/3"]])
    da, db = fractions([[1, 0], [2, "1/5"]]), fractions([[1, 1], [0, -1]])
    assert (directional_derivative(np.matmul, (a, b), (da, db)) == da @ b + a @ db).all()
    assert (directional_derivative(np.matmul, (a, b), (None, db)) == a @ db).all()
    assert directional_derivative(lambda a: np.cumprod(a[0]), (a,), (da,)).tolist() == [1, 2]         # x0, x0 x1
    assert directional_derivative(lambda a: np.where(a > 0, a * a, 1), (a,), (da,)).tolist() == [[2, 0], [2, 0]]
    assert directional_derivative(lambda a: a.max(), (a,), (da,)).tolist() == 0                       # the largest, 2, does not move
    assert directional_derivative(lambda a: F(3), (a,), (da,)).tolist() == 0


def test_gradient_is_exact():
    a, g = fractions(["1/2", 3]), log(["1/2", 0])
    da, dg = dual_gradient(lambda a, g: (a * np.exp(np.cumsum(g))).sum() / a[1], a, g)                # (a0 f0 + a1 f0 f1) / a1, f = 1/2, 0
    assert da.tolist() == [F(1, 6), F(-1, 36)] and dg.tolist() == [F(1, 12), 0]
    assert all(type(e) is F for e in [*da, *dg])


def test_gradient_of_floats_and_of_no_entries():
    (d,) = dual_gradient(lambda x: (x * x * x).sum(), np.array([[1.0, 2.0]]))
    assert d.tolist() == [[3, 12]] and dual_gradient(lambda x: x.sum(), fractions(np.zeros((0, 2), int)))[0].shape == (0, 2)
