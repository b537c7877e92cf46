"""Decay by channel: two tokens worked by hand, products against their definition, every range of gates, resets, causality inside the halves."""
import warnings

import numpy as np
import pytest

from npattn import gla, kda
from npattn.core.channel_decay import crossing, decay, products, scores, scores_vjp
from npattn.proof import directional_derivative, fractions, log, random_factors, random_fractions

FORMS = [("loop", {}), ("matrix", {})] + [("chunk", dict(chunk_size=C)) for C in (1, 2, 64)]


def same(x, expected):
    """Equal, entry by entry, to the nested list `expected`, as fractions."""
    expected = fractions(expected)
    assert x.shape == expected.shape and (x == expected).all(), (x, expected)


def definition(f):
    """D[i, j, c] = f[j+1, c] ... f[i, c] for factors (..., T, K), one product after the other."""
    T, K = f.shape[-2:]
    D = np.zeros(f.shape[:-2] + (T, T, K), f.dtype)
    for j in range(T):
        D[..., j, j, :] = 1
        for i in range(j + 1, T):
            D[..., i, j, :] = D[..., i - 1, j, :] * f[..., i, :]
    return D


def random_problem(T, K=2):
    rng = np.random.default_rng(T)
    return random_fractions(rng, (T, K)), random_fractions(rng, (T, K)), random_factors(rng, (T, K)), random_fractions(rng, (T, T))


# --- by hand: two tokens, two channels --------------------------------------------------------------------------

Q, K, G = fractions([[1, 2], [3, 1]]), fractions([[1, 1], [2, "1/2"]]), log([["1/2", "1/3"], ["1/4", "1/5"]])


def test_products_by_hand():
    D, a, z, A = decay(G)
    same(a, [["1/2", "1/3"], ["1/8", "1/15"]])
    same(z, [["1/4", "1/5"], [1, 1]])
    same(A, [["1/8"], ["1/15"]])
    same(scores(Q, K, D), [[3, 0], ["19/20", "13/2"]])   # 3/4 + 1/5


def test_gradients_by_hand():
    dq, dk, dg = scores_vjp(fractions([[5, 7], [2, 3]]), Q, K, decay(G)[0])      # 7 stands above the diagonal: not read
    same(dq, [[5, 5], ["13/2", "19/10"]])                # 2 k[0] f[1] + 3 k[1]
    same(dk, [["13/2", "52/5"], [9, 3]])                 # 5 q[0] + 2 q[1] f[1]
    same(dg, [[0, 0], ["3/2", "2/5"]])                   # 2 q[1] k[0] f[1]
    dg = crossing(fractions([[1, 0], [0, 0]]), fractions([[1, 2], [3, 4]]), fractions([[5, 6], [7, 8]]), fractions([9, 10]))
    same(dg, [[1 + 1 + 3 + 9, 2 + 4 + 10], [3 + 5 + 9, 4 + 6 + 10]])


# K = 2, V = 1, scale 1, first state (4, 2); decays (1/2, 1) and (1/3, 1/2); gradients of o[2] alone, so dS[2] = (3, 1).
MECHANISMS = {
    "gla": (gla, {}, [[7], ["37/2"]], [["25/6"], [6]],                           # S[1] = (5, 2); dS[1] = (1, 1/2)
            dict(q=[[0, 0], ["25/6", 6]], k=[[3, "3/2"], [15, 5]], v=[[1], ["5/2"]], g=[[2, 1], [5, 1]], state=[["1/2"], ["1/2"]])),
    "kda": (kda, dict(beta=fractions(["1/2", 2])), [["9/2"], ["257/12"]], [["53/12"], ["49/6"]],   # F = (2, 2), (5/6, 1); e = 1, 43/12
            dict(q=[[0, 0], ["53/12", "49/6"]], k=[["-1/12", "-7/6"], ["52/3", "13/6"]], v=[["1/12"], [5]],    # dF = (1/12, -2), (1/2, -4)
                 g=[["1/6", -4], ["5/12", -4]], beta=["1/6", "215/24"], state=[["1/24"], [-2]])),
}


@pytest.mark.parametrize("form, more", FORMS, ids=str)
@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_by_hand(name, form, more):
    module, others, o, final, gradients = MECHANISMS[name]
    x = dict(q=fractions([[1, 1], [3, 1]]), k=fractions([[1, 0], ["1/2", 1]]), v=fractions([[3], [5]]),
             g=log([["1/2", 1], ["1/3", "1/2"]]), state=fractions([[4], [2]]), scale=1, **others)
    got = getattr(module, form)(**x, **more)
    same(got[0], o)
    same(got[1], final)
    d = getattr(module, form + "_vjp")(fractions([[0], [1]]), **x, **more)
    assert set(d) == set(gradients)
    for argument, expected in gradients.items():
        same(d[argument], expected)


# --- against the definition -------------------------------------------------------------------------------------

@pytest.mark.parametrize("T", range(10))
def test_definition(T):
    q, k, f, dP = random_problem(T)
    halves, a, z, A = products(f)
    D = definition(f)
    P = (D * q[:, None] * k).sum(-1)
    assert (scores(q, k, halves) == P).all()
    assert (a == np.cumprod(f, 0)).all() and (A[:, 0] == f.prod(0)).all() and (z == (D[-1] if T else f)).all()

    dq, dk, dg = scores_vjp(dP, q, k, halves)
    dPD = np.tril(dP)[..., None] * D
    assert (dq == (dPD * k).sum(1)).all() and (dk == (dPD * q[:, None]).sum(0)).all()
    paths = dPD * q[:, None] * k                         # i j c
    assert all((dg[t] == paths[t:, :t].sum((0, 1))).all() for t in range(T))


def test_gradient_is_the_derivative():
    """Along a random direction, by dual numbers; through `decay` too, so the gates' logarithms are what dg is for."""
    q, k, f, dP = random_problem(7)
    direction = [random_fractions(np.random.default_rng(n), f.shape) for n in range(3)]
    P = directional_derivative(lambda q, k, g: scores(q, k, decay(g)[0]), (q, k, log(f)), direction)
    gradient = scores_vjp(dP, q, k, products(f)[0])
    assert (P * dP).sum() == sum((d * x).sum() for d, x in zip(gradient, direction)) != 0


def test_one_gate_for_all_channels():
    """Gates (..., T, 1) take the short way, with the same results; their gradient is the sum over channels."""
    rng = np.random.default_rng(0)
    q, k, f, dP = rng.standard_normal((11, 3)), rng.standard_normal((11, 3)), rng.random((11, 1)), rng.standard_normal((11, 11))
    one, every = products(f), products(np.repeat(f, 3, -1))
    for x, y in zip(one[1:], every[1:]):
        np.testing.assert_allclose(np.broadcast_to(x, y.shape), y, rtol=1e-13)
    np.testing.assert_allclose(scores(q, k, one[0]), scores(q, k, every[0]), rtol=1e-12, atol=1e-14)
    (*d_one, dg_one), (*d_every, dg) = scores_vjp(dP, q, k, one[0]), scores_vjp(dP, q, k, every[0])
    np.testing.assert_allclose(d_one, d_every, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(dg_one, dg.sum(-1, keepdims=True), rtol=1e-12, atol=1e-13)
    first, last, through = rng.standard_normal((11, 3)), rng.standard_normal((11, 3)), rng.standard_normal(3)
    np.testing.assert_allclose(crossing(dg_one, first, last, through), crossing(dg, first, last, through).sum(-1, keepdims=True), rtol=1e-12, atol=1e-13)


def test_leading_axes():
    rng = np.random.default_rng(0)
    q, k, g = rng.standard_normal((2, 1, 5, 3)), rng.standard_normal((5, 3)), -rng.random((4, 5, 3))
    P, dP = scores(q, k, decay(g)[0]), rng.standard_normal((5, 5))
    dq, dk, dg = scores_vjp(dP, q, k, decay(g)[0])
    assert P.shape == (2, 4, 5, 5) and dq.shape == dk.shape == dg.shape == (2, 4, 5, 3)
    for i, j in np.ndindex(2, 4):
        alone = decay(g[j])[0]
        np.testing.assert_allclose(P[i, j], scores(q[i, 0], k, alone), rtol=1e-13)
        for x, y in zip((dq, dk, dg), scores_vjp(dP, q[i, 0], k, alone)):
            np.testing.assert_allclose(x[i, j], y, rtol=1e-13)


# --- range ------------------------------------------------------------------------------------------------------

def gates(kind, rng, shape):
    if kind == "mixed":
        return -10 ** rng.uniform(-2, 4, shape)
    if kind == "resets":
        return np.where(rng.random(shape) < .1, -np.inf, -.01)
    if kind == "cliffs":
        return np.where(rng.random(shape) < .1, -1e4, -.01)
    return np.full(shape, kind)


@pytest.mark.parametrize("kind", ["mixed", "resets", "cliffs", 0., -.5, -5., -90., -np.inf], ids=str)
def test_range(kind):
    """float32 within 1e-5 of the definition in float64, and of the loop; no warning; what underflows is 0."""
    rng, T = np.random.default_rng(0), 70
    q, k, dP = (rng.standard_normal(shape).astype(np.float32) for shape in ((T, 8), (T, 8), (T, T)))
    g = gates(kind, rng, (T, 8)).astype(np.float32)
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        D, *ends = decay(g)
        got = [scores(q, k, D), *scores_vjp(dP, q, k, D)]
    for factor in (*ends, *(x for pair in D for x in pair)):
        assert factor.dtype == np.float32 and ((0 <= factor) & (factor <= 1)).all()
    q, k, dP, D = (x.astype(np.float64) for x in (q, k, dP, definition(np.exp(g.astype(np.float64)))))
    paths = np.tril(dP)[..., None] * D * q[:, None] * k
    wanted = [(D * q[:, None] * k).sum(-1), (np.tril(dP)[..., None] * D * k).sum(1), (np.tril(dP)[..., None] * D * q[:, None]).sum(0),
              np.stack([paths[t:, :t].sum((0, 1)) for t in range(T)])]
    for x, y in zip(got, wanted):
        assert x.dtype == np.float32 and np.abs(x - y).max() <= 1e-5 * np.abs(y).max()


@pytest.mark.parametrize("module, others", [(gla, ()), (kda, ("beta",))], ids=["gla", "kda"])
@pytest.mark.parametrize("kind", ["mixed", "resets", "cliffs", -5.], ids=str)
def test_mechanisms_in_float32(kind, module, others):
    rng, T = np.random.default_rng(1), 70
    shapes = dict(q=(T, 8), k=(T, 8), v=(T, 4), beta=(T,), state=(8, 4))
    x = {name: rng.standard_normal(shapes[name]) for name in ("q", "k", "v", *others, "state")}
    x["k"] /= np.sqrt((x["k"] ** 2).sum(-1, keepdims=True))
    x["g"] = gates(kind, rng, (T, 8))
    if "beta" in x:
        x["beta"] = 1 / (1 + np.exp(x["beta"]))
    small = {name: y.astype(np.float32) for name, y in x.items()}
    large = {name: y.astype(np.float64) for name, y in small.items()}
    do, dfinal = rng.standard_normal((T, 4)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
    o, final = module.loop(**large)
    d = module.loop_vjp(do.astype(np.float64), **large, dfinal_state=dfinal.astype(np.float64))
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for form, more in ("matrix", {}), ("chunk", dict(chunk_size=16)):
            got = getattr(module, form)(**small, **more)
            gradients = getattr(module, form + "_vjp")(do, **small, dfinal_state=dfinal, **more)
            for a, b in [*zip(got, (o, final)), *((gradients[name], d[name]) for name in d)]:
                assert a.dtype == np.float32 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
            assert (gradients["g"][small["g"] == -np.inf] == 0).all()


# --- what must not touch what -------------------------------------------------------------------------------------

def test_reset():
    """What follows a reset of all channels is what it would be alone; nothing passes it, forwards or back."""
    q, k, f, dP = random_problem(13)
    f[5] = 0
    D, a, z, A = products(f)
    P = scores(q, k, D)
    assert (P[5:, :5] == 0).all() and (P[5:, 5:] == scores(q[5:], k[5:], products(f[5:])[0])).all()
    assert (a[5:] == 0).all() and (z[:5] == 0).all() and (A == 0).all() and (a[:5] != 0).any()
    whole, alone = scores_vjp(dP, q, k, D), scores_vjp(dP[:5, :5], q[:5], k[:5], products(f[:5])[0])
    for x, y in zip(whole, alone):
        assert (x[:5] == y).all() and (y != 0).any()
    assert (whole[2][5] == 0).all()


@pytest.mark.parametrize("T", [2, 13, 16])
def test_causality(T):
    """Bit for bit, for every token: later tokens touch no earlier row, and gradients from later rows no later column's."""
    rng = np.random.default_rng(0)
    q, k, dP = (rng.standard_normal(shape).astype(np.float32) for shape in ((T, 5), (T, 5), (T, T)))
    g = -rng.random((T, 5)).astype(np.float32)
    D, a, *_ = decay(g)
    P = scores(q, k, D)
    for p in range(T):
        q2, k2, g2 = (np.concatenate([x[:p], y]) for x, y in ((q, k[p:]), (k, q[p:]), (g, g[p:] * 3)))
        D2, a2, *_ = decay(g2)
        assert (scores(q2, k2, D2)[:p] == P[:p]).all() and (a2[:p] == a[:p]).all() and (a2[p:] != a[p:]).all()
        early = dP.copy()
        early[p:] = 0
        d, d2 = scores_vjp(early, q, k, D), scores_vjp(early, q2, k2, D2)
        for x, y in zip(d, d2):
            assert (x[:p] == y[:p]).all() and (x[p:] == 0).all() and (y[p:] == 0).all()
    assert (P == np.tril(P)).all() and (P != 0).sum() == T * (T + 1) // 2
