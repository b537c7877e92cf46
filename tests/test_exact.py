"""Fractions, logarithms of fractions and their printing: expected values by hand."""
from fractions import Fraction as F
import math

import numpy as np
import pytest

from npattn.core.states import Normalized
from npattn.proof import Log, fractions, log, random_factors, random_fractions, show, table, text


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype == object and (a == b).all()


def test_fractions_of_everything_written_as_one():
    x = fractions([[1, "1/2"], [F(2, 3), np.int64(-4)]])
    assert x.dtype == object and x.tolist() == [[F(1), F(1, 2)], [F(2, 3), F(-4)]]
    assert all(type(e) is F for e in x.flat)
    assert fractions("3/4").shape == () and fractions("3/4")[()] == F(3, 4)
    assert same(fractions(x), x) and fractions(x) is not x
    assert fractions(np.zeros((0, 2), int)).shape == (0, 2)
    big = fractions(np.array([2 ** 62]))
    assert (big * big)[0] == 2 ** 124                                # a NumPy integer inside would overflow


@pytest.mark.parametrize("make", [fractions, log])
@pytest.mark.parametrize("x", [[0.5], 0.1, np.array([0.5]), [None], [1j]])
def test_floats_are_refused(make, x):
    with pytest.raises(TypeError, match="write integers, fractions or strings"):
        make(x)


def test_log_is_the_logarithm():
    g = log(["1/2", 1, 0, "2/3"])
    assert np.exp(g).tolist() == [F(1, 2), 1, 0, F(2, 3)]
    assert np.exp(np.cumsum(g)).tolist() == [F(1, 2), F(1, 2), 0, 0]          # the cumulative sum is that of a product
    assert np.exp(g[[0, 1, 3]].sum()) == F(1, 3)
    assert np.exp(g[3] - g[0]) == F(4, 3) and np.exp(-g[0]) == 2 and np.exp(2 * g[3] * 2) == F(16, 81)
    assert np.exp(g[0] * F(3)) == np.exp(g[0] * np.int64(3)) == F(1, 8)
    assert sum([g[0], g[3]]).exp() == F(1, 3) and (g[0] - 0).exp() == (-g[0] + g[0] + g[0]).exp() == F(1, 2) and (0 - g[0]).exp() == 2
    assert np.exp(g[0] + g)[3] == F(1, 3) and np.exp(g + g[0])[3] == F(1, 3)  # number with array, both ways
    assert bool(g[0]) and not bool(g[1])


def test_log_has_no_answer_where_there_is_none():
    zero, half = Log(0), Log("1/2")
    for wrong in (lambda: -zero, lambda: zero - zero, lambda: half - zero, lambda: 0 * zero, lambda: zero * -2):
        with pytest.raises(ZeroDivisionError):
            wrong()
    assert (zero + zero).exp() == (zero - half).exp() == (3 * zero).exp() == 0
    with pytest.raises(ValueError, match="-1/2"):
        log("-1/2")
    for wrong in (lambda: half + 1, lambda: half + F(1, 2), lambda: half * half, lambda: half * F(1, 2), lambda: half * 0.5, lambda: half < "0",
                  lambda: half < 0.5):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError):
        hash(half)


def test_log_is_ordered():
    g = log([0, "1/3", 1, 3])                                        # -inf, about -1.0986, 0, about 1.0986
    assert (g > 0).tolist() == [False, False, False, True] and (g <= 0).tolist() == [True, True, True, False]
    assert (g == 0).tolist() == [False, False, True, False] and (g != g).tolist() == [False] * 4
    assert (g < -1).tolist() == [True, True, False, False] and (g > -2).tolist() == [False, True, True, True]
    assert (g >= 1).tolist() == [False, False, False, True] and (2 > g).tolist() == [True] * 4
    assert (g == -np.inf).tolist() == [True, False, False, False] and (g < np.inf).all() and (g > -math.inf).tolist() == [False, True, True, True]
    assert (g <= np.nan).tolist() == (g == np.nan).tolist() == [False] * 4 and (g != np.nan).all()
    assert (g < 0.0).tolist() == [True, True, False, False]
    assert not (g[1] == F(1, 2)) and g[1] != "x"
    assert np.maximum(g, log("1/2")).tolist() == [Log("1/2"), Log("1/2"), 0, Log(3)] and g.max() == Log(3) and np.argsort(g[::-1]).tolist() == [3, 2, 1, 0]
    assert Log(F(2718281828459045, 10 ** 15)) < 1 < Log(F(2718281828459046, 10 ** 15))       # e = 2.718281828459045235...
    assert Log(F(367879441171442321, 10 ** 18)) < -1 < Log(F(367879441171442322, 10 ** 18))  # 1 / e = 0.3678794411714423215955...


def test_log_rounds_only_when_asked():
    assert log([0, 1, "1/2"]).astype(float).tolist() == [-math.inf, 0, -math.log(2)]
    assert float(Log(F(1, 10 ** 400))) == pytest.approx(-400 * math.log(10))  # the fraction itself is no float


def test_arithmetic_of_a_gated_form():
    """The products of factors that a decay matrix is made of, by hand: factors 1, 1/2, 0."""
    f = np.exp(log([1, "1/2", 0]))
    D = np.tril(np.cumprod(np.where(np.tri(3, k=-1, dtype=bool), f[:, None], np.ones((), f.dtype)), axis=0))
    assert same(D, fractions([[1, 0, 0], ["1/2", 1, 0], [0, 0, 1]]))
    assert (D @ fractions([1, 2, 3])).tolist() == [1, F(5, 2), 3]


def test_random_fractions_are_small_and_reproducible():
    x = random_fractions(np.random.default_rng(0), (40, 5))
    assert x.shape == (40, 5) and all(type(e) is F and abs(e) <= 4 and e.denominator <= 4 for e in x.flat)
    assert same(x, random_fractions(np.random.default_rng(0), (40, 5))) and len(set(x.flat)) > 20
    assert random_fractions(np.random.default_rng(0), ()).shape == ()


def test_random_factors_hold_a_reset_and_a_one():
    for seed in range(20):
        f = random_factors(np.random.default_rng(seed), (2, 3))
        assert f.shape == (2, 3) and (f == 0).sum() == 1 and (f == 1).sum() == 1 and ((f >= 0) & (f <= 1)).all()
    assert (random_factors(np.random.default_rng(0), 9, resets=3) == 0).sum() == 3
    assert (random_factors(np.random.default_rng(0), 9, resets=0) > 0).all()
    for shape in ((), (1,), (0, 3), (2,)):
        assert random_factors(np.random.default_rng(0), shape).shape == shape


def test_text():
    assert text(fractions([["-1/2", 0], [10, "1/3"]])) == "-1/2    0\n  10  1/3"
    assert text(log([0, 1, "1/2"])) == "-inf  0  ln 1/2" and repr([Log("1/2"), Log(2)]) == "[ln 1/2, ln 2]"
    assert text(F(1, 2)) == "1/2" and text(3) == "3" and text("t") == "t"
    assert text(np.array([[0.5, 1 / 3], [-1e-7, 0]])) == "   0.5  0.333333\n-1e-07         0"
    assert text(np.array([1 + 2j])) == "1+2j" and text(np.array([1], np.float32)) == "1"
    assert text(fractions([[[1, 2]], [[3, 4]]])) == "[0]\n1  2\n[1]\n3  4"
    assert text(Normalized(fractions([[1]]), fractions(["1/2"]))) == "S =\n1\nz =\n1/2"
    assert text(fractions(np.zeros((0, 2), int))) == ""


def test_show_and_table_print(capsys):
    show(fractions(["1/2", 1]), F(3))
    table({"t": [1, 2], "S": [fractions([[1, 0], [0, "1/2"]])] * 2})
    assert capsys.readouterr().out == "1/2  1\n3\nt |      S\n1 | 1    0\n  | 0  1/2\n2 | 1    0\n  | 0  1/2\n"
