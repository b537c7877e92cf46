"""The proofs of gradients: on functions of one's own, on the catalogue, and on gradients that are wrong on purpose."""
import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core import feature_maps, functions
from npattn.core.states import Normalized
from npattn.delta import gated_delta_rule
from npattn.proof import (PROOFS, central_differences, check_gradients, check_mechanism, complex_step, dual_gradient, fractions, grad, log, random_factors,
                          random_fractions, vjp)

rng = np.random.default_rng(0)
A, B, D = rng.standard_normal((3, 4)), rng.standard_normal((4, 2)), rng.standard_normal((3, 2))


# --- the catalogue ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", CATALOGUE)
def test_every_gradient_of_the_catalogue_is_proved(name):
    row, proofs = CATALOGUE[name], check_mechanism(name)
    assert [p for p in proofs if not p.holds] == []
    wanted = {"tape", "complex step" if row.analytic else "central differences"} | ({"exact dual"} if row.exact else set())
    arguments = {p.argument for p in proofs}
    assert {a.partition(".")[0] for a in arguments} == set(row.axes) and {(p.argument, p.proof) for p in proofs} == {(a, p) for a in arguments for p in wanted}


def final_state_forgotten(right):
    """dg without what the gradient of the final state sends through the gates."""
    return lambda do, dfinal_state=None, **x: dict(right(do, **x, dfinal_state=dfinal_state), g=right(do, **x)["g"])


def prediction_forgotten(right):
    """dbeta = v . (k dS) instead of (v - k S) . (k dS), where dv = beta (k dS)."""
    def wrong(do, **x):
        d = right(do, **x)
        return dict(d, beta=(x["v"] * d["v"]).sum(-1) / np.where(x["beta"] == 0, 1, x["beta"]))
    return wrong


def twice(right):
    def wrong(do, **x):
        d = right(do, **x)
        return dict(d, k=2 * d["k"])
    return wrong


@pytest.mark.parametrize("flaw, argument", [(final_state_forgotten, "g"), (prediction_forgotten, "beta"), (twice, "k")])
def test_a_wrong_gradient_is_caught_by_each_proof(monkeypatch, flaw, argument):
    monkeypatch.setattr(gated_delta_rule, "loop_vjp", flaw(gated_delta_rule.loop_vjp))
    for p in check_mechanism("gated_delta_rule"):
        assert p.holds == (p.argument != argument)
        if not p.holds:                                              # the other two gradients are right
            assert p.loop_vjp > 1e-3 and max(p.matrix_vjp, p.chunk_vjp) <= PROOFS[p.proof][1]


def test_an_unknown_mechanism():
    with pytest.raises(KeyError, match="no_such_rule"):
        check_mechanism("no_such_rule")


# --- each proof alone ------------------------------------------------------------------------------------------------------

def rational(x, y):
    return ((x @ y) ** 2).sum() / (1 + (x * x).sum())


def by_hand(x, y):
    n, p = 1 + (x * x).sum(), x @ y
    return 2 * p @ y.T / n - 2 * x * (p * p).sum() / (n * n), 2 * x.T @ p / n


@pytest.mark.parametrize("prove, tolerance", [(complex_step, 1e-14), (central_differences, 1e-8), (lambda f, *x: grad(f)(*x), 1e-14)])
def test_a_proof_in_floats(prove, tolerance):
    for got, want in zip(prove(rational, A, B), by_hand(A, B), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * abs(want).max())


@pytest.mark.parametrize("prove", [dual_gradient, lambda f, *x: grad(f)(*x)])
def test_a_proof_in_fractions(prove):
    x, y = random_fractions(rng, (2, 3)), random_fractions(rng, (3, 1))
    for got, want in zip(prove(rational, x, y), by_hand(x, y), strict=True):
        assert got.shape == want.shape and (got == want).all()


def test_at_a_reset_the_gradient_is_zero():
    f = lambda g: (np.exp(g) * np.array([1., 2])).sum()
    for prove in complex_step, central_differences:
        np.testing.assert_allclose(prove(f, np.array([-np.inf, 0.]))[0], [0, 2], atol=1e-9)


# --- functions of one's own ----------------------------------------------------------------------------------------------------

def logsumexp_pair(x, w):
    y = functions.logsumexp(x)
    return y, y * w


def logsumexp_pair_vjp(do, x, w):
    dy = do[0] + do[1] * w
    return dict(w=do[1] * functions.logsumexp(x), x=functions.logsumexp_vjp(dy, x))


@pytest.mark.parametrize("f, f_vjp, arrays, proof", [
    (np.matmul, lambda do, a, b: (do @ b.T, a.T @ do), (A, B), "complex step"),
    (np.matmul, lambda do, a, b: (do @ b.T, a.T @ do), (fractions([[1, 2]]), fractions([["1/2"], [3]])), "exact dual"),
    (functions.softmax, functions.softmax_vjp, (A,), "complex step"),
    (logsumexp_pair, logsumexp_pair_vjp, (A, D[:, 0]), "complex step"),
    (functions.gated_rms_norm, functions.gated_rms_norm_vjp, (A, A[::-1], A[0]), "complex step"),
    (np.abs, lambda do, x: do * np.sign(x), (A,), "central differences"),
    (lambda x: x * abs(x), lambda do, x: do * 2 * abs(x), (A,), "central differences"),
    (lambda x: np.logaddexp(0, x), lambda do, x: do * functions.sigmoid(x), (A,), "central differences"),
    (lambda x: x.astype(float), lambda do, x: do, (A,), "central differences"),
    (np.exp, lambda do, x: do * np.exp(x), (A + 1j,), "central differences"),
])
def test_a_right_gradient(f, f_vjp, arrays, proof):
    found = check_gradients(f, f_vjp, *arrays)
    assert len(found) == len(arrays)
    for used, error in found.values():
        assert used == proof and error <= PROOFS[proof][1]

    def wrong(do, *arrays):
        d = f_vjp(do, *arrays)
        return {n: 2 * x for n, x in d.items()} if isinstance(d, dict) else tuple(2 * x for x in d) if isinstance(d, tuple) else 2 * d

    assert all(error > .1 for _, error in check_gradients(f, wrong, *arrays).values())


@pytest.mark.parametrize("module, name", [(functions, n) for n in ("softmax", "logsumexp", "sigmoid", "silu", "softplus", "l2norm", "rms_norm", "gated_rms_norm")]
                         + [(feature_maps, n) for n in ("elu_plus_one", "relu", "squared_relu", "softmax_pair", "taylor")])
def test_the_tape_runs_core_unchanged(module, name):
    arrays = dict(rms_norm=(A, A[0]), gated_rms_norm=(A, A[::-1], A[0])).get(name, (A,))
    y, pull = vjp(getattr(module, name), *arrays)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    by_hand = getattr(module, name + "_vjp")(dy, *arrays)
    for got, want in zip(pull(dy), by_hand if isinstance(by_hand, tuple) else (by_hand,), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)


def test_the_matrix_form_in_fractions():
    random, T, K, V = np.random.default_rng(1), 4, 1, 2
    x = dict(q=random_fractions(random, (T, K)), k=random_fractions(random, (T, K)), v=random_fractions(random, (T, V)), g=log(random_factors(random, T, resets=0)),
             beta=random_fractions(random, T), state=random_fractions(random, (K, V)))

    def f(q, k, v, g, beta, state):
        return gated_delta_rule.matrix(q, k, v, g=g, beta=beta, state=state)

    def f_vjp(do, q, k, v, g, beta, state):
        return gated_delta_rule.matrix_vjp(do[0], q, k, v, g=g, beta=beta, state=state, dfinal_state=do[1])

    found = check_gradients(f, f_vjp, *x.values())
    assert found == {name: ("exact dual", 0) for name in x}
    one_path_less = lambda do, *x: dict(f_vjp(do, *x), g=f_vjp((do[0], None), *x)["g"])
    assert check_gradients(f, one_path_less, *x.values()) == dict(found, g=("exact dual", np.inf))
    assert check_gradients(f, one_path_less, *x.values(), do=(fractions(np.ones((T, V), int)), None))["g"] == ("exact dual", 0)


def test_a_gate_of_zero_leaves_the_domain_one_step_on():
    def f(g):
        if not (g.real <= 0).all():
            raise ValueError("g")
        return np.exp(g)

    assert check_gradients(f, lambda do, g: do * np.exp(g), np.array([0., -1]))["g"][0] == "complex step"


def test_arguments_by_name_leaf_and_kind():
    def f(state, index, mask=None, *more):
        return state.S[index] * state.z * more[0]

    def f_vjp(do, state, index, mask, w):
        dS = np.zeros_like(state.S)
        dS[index] = do * state.z * w
        return Normalized(dS, do * state.S[index] * w), None, None, (do * state.S[index] * state.z).sum(keepdims=True)

    arrays = Normalized(A, A[0] + 1), np.array(1), None, np.array([2.])
    assert list(check_gradients(f, f_vjp, *arrays)) == ["state.S", "state.z", "argument 3"]
    assert max(error for _, error in check_gradients(f, f_vjp, *arrays).values()) < 1e-14
    short = lambda *x: tuple(d for d in f_vjp(*x) if d is not None)
    assert max(error for _, error in check_gradients(f, short, *arrays).values()) < 1e-14


@pytest.mark.parametrize("f_vjp, arrays, kind, message", [
    (lambda do, x: {}, (A,), ValueError, "no gradient for x"),
    (lambda do, x: do[0], (A,), ValueError, r"gradient of x \(3, 4\) has shape \(4,\)"),
    (lambda do, x: (do, do), (A,), ValueError, "gave 2 gradients for the arguments x"),
    (lambda do, x: do, (A.astype(np.float32),), TypeError, "needs float64, complex128 or fractions: x float32"),
])
def test_unusable_input_is_named(f_vjp, arrays, kind, message):
    with pytest.raises(kind, match=message):
        check_gradients(lambda x: x * 1, f_vjp, *arrays)


def test_fractions_and_floats_do_not_mix():
    with pytest.raises(TypeError, match="cannot be mixed: x object, y float64"):
        check_gradients(lambda x, y: x * y, lambda do, x, y: (do * y, do * x), fractions([1, 2]), np.array([1., 2]))


def test_nan_is_never_right():
    assert check_gradients(lambda x: np.sin(x), lambda do, x: do * np.nan, A)["x"] == ("complex step", np.inf)
