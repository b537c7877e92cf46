"""Softmax attention: values by hand, who sees whom, empty rows, caches, log-sum-exp and merging, bias, grouped heads, tiles."""
from functools import partial, reduce
import inspect
from math import inf, log
import tracemalloc
import warnings

import numpy as np
import pytest

from npattn import softmax_attention
from npattn.core import heads
from npattn.core.states import Cache
from npattn.softmax.softmax_attention import merge, sight, tiles

rng = np.random.default_rng(0)
m = softmax_attention
SIZES = (1, 2, 3, 5, 64)
FORMS = {"loop": m.loop_lse, "matrix": m.matrix_lse, **{f"chunk of {C}": partial(m.chunk_lse, chunk_size=C) for C in SIZES}}
VJPS = {"loop": m.loop_vjp, "matrix": m.matrix_vjp, **{f"chunk of {C}": partial(m.chunk_vjp, chunk_size=C) for C in SIZES}}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
every_vjp = pytest.mark.parametrize("vjp", VJPS.values(), ids=VJPS)


def normal(*shape):
    return rng.standard_normal(shape)


def close(x, wanted, tolerance=1e-13):
    assert np.shape(x) == np.shape(wanted)
    np.testing.assert_allclose(x, wanted, rtol=tolerance, atol=tolerance)


# --- by hand: the second token has scores 0 and ln 2, so weights 1/3 and 2/3 -----------------------------------------

TWO = dict(q=np.ones((2, 1)), k=np.array([[0], [log(2)]]), v=np.eye(2), scale=1)


@every_form
def test_two_tokens(form):
    o, state, lse = form(**TWO)
    close(o, [[1, 0], [1 / 3, 2 / 3]])
    close(lse, [0, log(3)])
    assert (state.k == TWO["k"]).all() and (state.v == TWO["v"]).all()


@every_vjp
def test_gradients_of_two_tokens(vjp):
    """do = (3, 0) for the second: do · v = (3, 0), their mean 1, so ds = (1/3 (3 - 1), 2/3 (0 - 1))."""
    d = vjp(np.array([[0., 0], [3, 0]]), **TWO, bias=np.zeros((2, 2)))
    close(d["bias"], [[0, 0], [2 / 3, -2 / 3]])
    close(d["q"], [[0], [-2 / 3 * log(2)]])
    close(d["k"], [[2 / 3], [-2 / 3]])
    close(d["v"], [[1, 0], [2, 0]])
    assert d["state"].k.shape == (0, 1) and d["state"].v.shape == (0, 2) and set(d) == {"q", "k", "v", "bias", "state"}


# --- who sees whom: with q = 0 the output is the mean of what is seen; a bias ln w weighs it by w --------------------

@every_form
@pytest.mark.parametrize("T, N, n", [(6, 6, 0), (3, 6, 0), (6, 3, 0), (1, 6, 0), (4, 4, 3), (2, 5, 3), (0, 2, 1), (3, 0, 2)])
@pytest.mark.parametrize("options", [{}, dict(window=1), dict(window=3), dict(window=99), dict(causal=False), dict(causal=False, window=2)], ids=str)
def test_who_sees_whom(form, options, T, N, n):
    mask, weight = rng.random((T, n + N)) < .7, rng.integers(0, 4, n + N)
    v = normal(n + N, 2)
    with np.errstate(divide="ignore"):
        bias = np.log(weight.astype(float))
    o, state, lse = form(np.zeros((T, 4)), normal(N, 4), v[n:], state=Cache(normal(n, 4), v[:n]), mask=mask, bias=bias, **options)
    assert o.shape == (T, 2) and (state.v == v).all()
    for i in range(T):
        seen = [j for j in range(n + N) if mask[i, j] and weight[j] and (j <= n + i or not options.get("causal", True))
                and abs(n + i - j) < options.get("window", inf)]
        total = sum(weight[j] for j in seen)
        close(o[i], sum(weight[j] * v[j] for j in seen) / total if seen else np.zeros(2))
        close(lse[i], log(total) if seen else -inf)


@every_vjp
def test_nothing_to_see(vjp):
    """Row 1 by the mask, row 2 by the bias, row 3 by both: zeros, zero gradients, and no warning."""
    q, k, v, do = (normal(2, 4, 3) for _ in range(4))
    mask, bias = np.ones((4, 4), bool), normal(4, 4)
    mask[[1, 3]], bias[[2, 3]] = False, -inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in FORMS.values():
            o, _, lse = form(q, k, v, causal=False, mask=mask, bias=bias)
            assert (o[:, 1:] == 0).all() and (lse[:, 1:] == -inf).all() and np.isfinite(lse[:, 0]).all() and (o[:, 0] != 0).all()
        d = vjp(do, q, k, v, causal=False, mask=mask, bias=bias)
    assert (d["q"][:, 1:] == 0).all() and (d["bias"][1:] == 0).all() and (d["q"][:, 0] != 0).all() and (d["bias"][0] != 0).all()
    alone = vjp(do[:, :1], q[:, :1], k, v, causal=False, bias=bias[:1])
    close(d["k"], alone["k"])
    close(d["v"], alone["v"])


@every_form
def test_large_scores(form):
    """Scores in the ten thousands: one weight is 1, the others 0, in float32 too."""
    x = np.array([[100.], [-100], [200], [-200]], np.float32)
    v = np.arange(4, dtype=np.float32)[:, None]
    o, _, lse = form(x, x, v, scale=1)
    assert o.dtype == lse.dtype == np.float32
    close(o, [[0], [1], [2], [3]])
    close(lse, [1e4, 1e4, 4e4, 4e4])
    for vjp in VJPS.values():
        assert all((part == 0).all() for part in (vjp(v, x, x, v, scale=1)[name] for name in "qk"))


# --- caches ------------------------------------------------------------------------------------------------------

@every_form
@pytest.mark.parametrize("window", [None, 3])
def test_decoding(form, window):
    """Token by token, the bias of a row with it, is one call; the cache is never cut."""
    q, k, v, bias = normal(2, 7, 4), normal(2, 7, 4), normal(2, 7, 3), normal(7, 7)
    wanted, cache, wanted_lse = m.matrix_lse(q, k, v, window=window, bias=bias)
    state, o, lse = None, [], []
    for t in range(7):
        x = form(q[:, t:t + 1], k[:, t:t + 1], v[:, t:t + 1], window=window, bias=bias[t:t + 1, :t + 1], state=state)
        o, state, lse = o + [x[0]], x[1], lse + [x[2]]
    close(np.concatenate(o, -2), wanted)
    close(np.concatenate(lse, -1), wanted_lse)
    assert (state.k == cache.k).all() and (state.k == k).all() and (state.v == v).all()


@every_vjp
def test_gradients_through_a_cache(vjp):
    """Old and new keys in one call, the queries of the old ones without a cotangent, is the same with a cache; the cotangent of the returned cache is added."""
    q, k, v, do, dfinal = normal(2, 5, 4), normal(2, 8, 4), normal(2, 8, 3), normal(2, 5, 3), Cache(normal(2, 8, 4), normal(2, 8, 3))
    d = vjp(do, q, k[:, 3:], v[:, 3:], state=Cache(k[:, :3], v[:, :3]), dfinal_state=dfinal)
    whole = m.loop_vjp(np.pad(do, ((0, 0), (3, 0), (0, 0))), np.pad(q, ((0, 0), (3, 0), (0, 0))), k, v)
    close(d["q"], whole["q"][:, 3:])
    close(np.concatenate([d["state"].k, d["k"]], 1), whole["k"] + dfinal.k)
    close(np.concatenate([d["state"].v, d["v"]], 1), whole["v"] + dfinal.v)


# --- log-sum-exp and merging -------------------------------------------------------------------------------------

@every_form
def test_merging_parts_gives_the_whole(form):
    """Keys dealt out to four masks, of which one sees nothing and one leaves rows empty; in any order."""
    q, k, v = normal(2, 6, 4), normal(2, 6, 4), normal(2, 6, 3)
    wanted, _, wanted_lse = m.matrix_lse(q, k, v)
    owner = np.array([0, 1, 0, 3, 1, 3])
    parts = [(o, lse) for o, _, lse in (form(q, k, v, mask=owner == p) for p in range(4))]
    assert (parts[2][1] == -inf).all() and (parts[3][1] == -inf).any()
    for order in (0, 1, 2, 3), (2, 3, 1, 0):
        o, lse = reduce(merge, [parts[p] for p in order])
        close(o, wanted)
        close(lse, wanted_lse)
    o, lse = merge(parts[2], parts[2])
    assert (o == 0).all() and (lse == -inf).all()


def test_merging_by_hand():
    o, lse = merge((np.array([[3.]]), np.array([log(1)])), (np.array([[0.]]), np.array([log(2)])))
    close(o, [[1]])
    close(lse, [log(3)])


# --- gradients -------------------------------------------------------------------------------------------------------

@every_vjp
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 1, 5, 7), (5, 1), (1, 1, 7), (7,), (1,)])
def test_complex_step(vjp, shape):
    """Along one direction of every argument, with a mask, a cache and a bias of every shape that broadcasts; the bias's gradient has its shape."""
    x = dict(q=normal(2, 3, 5, 4), k=normal(2, 1, 5, 4), v=normal(3, 5, 3), bias=normal(*shape), old_k=normal(2, 1, 2, 4), old_v=normal(2, 3))
    options, do, dfinal = dict(mask=rng.random((5, 7)) < .8, window=4), normal(2, 3, 5, 3), Cache(normal(2, 3, 7, 4), normal(2, 3, 7, 3))
    call = lambda f, *first, q, k, v, bias, old_k, old_v, **more: f(*first, q, k, v, bias=bias, state=Cache(old_k, old_v), **options, **more)
    d = call(vjp, do, **x, dfinal_state=dfinal)
    d |= dict(old_k=d["state"].k, old_v=d["state"].v)
    for form in m.loop, m.matrix, partial(m.chunk, chunk_size=3):
        for name in x:
            direction = normal(*x[name].shape)
            o, final = call(form, **x | {name: x[name] + 1e-30j * direction})
            step = (sum((a * b).sum() for a, b in zip((o, *final), (do, *dfinal)))).imag / 1e-30
            assert d[name].shape == x[name].shape
            close((d[name] * direction).sum(), step, 1e-12)


@pytest.mark.parametrize("k_heads", [1, 2, 4])
def test_grouped_heads(k_heads):
    """Query head h uses key head h // G: broadcasting is repeating, and its gradient the sum over a key head's queries."""
    q, k, v, do = normal(2, 4, 5, 3), normal(2, k_heads, 5, 3), normal(2, k_heads, 5, 2), normal(2, 4, 5, 2)
    G = 4 // k_heads
    wanted, wanted_d = m.loop(q, heads.repeat(k, G), heads.repeat(v, G))[0], m.loop_vjp(do, q, heads.repeat(k, G), heads.repeat(v, G))
    for form, vjp in zip(FORMS.values(), VJPS.values()):
        o, state, _ = form(heads.group(q, k_heads), k[:, :, None], v[:, :, None])
        d = vjp(heads.group(do, k_heads), heads.group(q, k_heads), k[:, :, None], v[:, :, None])
        close(heads.ungroup(o), wanted)
        close(heads.ungroup(d["q"]), wanted_d["q"])
        close(d["k"][:, :, 0], heads.repeat_vjp(wanted_d["k"], G))
        close(d["v"][:, :, 0], heads.repeat_vjp(wanted_d["v"], G))
        assert state.k.shape == (2, k_heads, 1, 5, 3)                # kept once for each key head


# --- tiles -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, visited, looked_into", [
    (dict(causal=True, window=None), 10, 4),             # of 4 by 4 tiles the lower triangle; the diagonal is masked
    (dict(causal=True, window=4), 7, 7),                 # 4 + 3 keys for every tile but the first
    (dict(causal=False, window=None), 16, 0)])
def test_hidden_tiles_are_left_out(options, visited, looked_into):
    x = np.zeros((16, 1))
    keys, see, _ = sight(x, x, 0, mask=None, bias=None, **options)
    of = tiles(keys, see, 4)
    found = [look for start in range(0, 16, 4) for _, look in of(slice(start, start + 4))]
    assert (len(found), sum(look is not None for look in found)) == (visited, looked_into)


@pytest.mark.parametrize("form", [m.chunk, partial(m.chunk_vjp, normal(2048, 2))])
def test_memory(form):
    """Tiles of 64: far from the 32 MiB that 2048 by 2048 scores take."""
    x = normal(2048, 2)
    tracemalloc.start()
    form(x, x, x, chunk_size=64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 ** 20


# --- what is refused -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("error, message, options", [
    (TypeError, "mask must be an array of booleans", dict(mask=np.ones((3, 3)))), (TypeError, "mask must be", dict(mask=[[True]])),
    (ValueError, r"mask \(2, 3\) does not fit \(3, 3\)", dict(mask=np.ones((2, 3), bool))),
    (ValueError, r"bias \(2, 3, 3\) does not fit \(3, 3\)", dict(bias=np.ones((2, 3, 3)))), (TypeError, "bias must hold floats", dict(bias=np.ones((3, 3), int))),
    (ValueError, "window must be an integer of at least 1, not 0", dict(window=0)), (ValueError, "window", dict(window=1.5)),
    (ValueError, "window", dict(window=True)), (TypeError, "state must be a Cache, not ndarray", dict(state=np.ones((3, 2)))),
    (ValueError, r"n is 2 in state.k and 1 in state.v", dict(state=Cache(np.ones((2, 2)), np.ones((1, 2)))))])
def test_refused(error, message, options):
    x = np.ones((3, 2))
    for form in m.loop, m.matrix, m.chunk, m.loop_lse, m.matrix_lse, m.chunk_lse, *(partial(vjp, x) for vjp in (m.loop_vjp, m.matrix_vjp, m.chunk_vjp)):
        with pytest.raises(error, match=message):
            form(x, x, x, **options)


def test_refused_sizes():
    x = np.ones((3, 2))
    for form in m.chunk, m.chunk_lse, partial(m.chunk_vjp, x):
        with pytest.raises(ValueError, match="chunk_size must be an integer of at least 1, not 0"):
            form(x, x, x, chunk_size=0)
    for vjp in m.loop_vjp, m.matrix_vjp, m.chunk_vjp:
        with pytest.raises(ValueError, match=r"dfinal_state must have 0 cached and 3 new tokens: .* dfinal_state.k \(2, 2\)"):
            vjp(x, x, x, x, dfinal_state=Cache(x[:2], x[:2]))
        with pytest.raises(ValueError, match=r"do \(2, 3, 2\) does not fit \(3, 2\)"):
            vjp(np.ones((2, 3, 2)), x, x, x)
    with pytest.raises(ValueError, match="N is 3 in k and 2 in v"):
        m.loop(x, x, x[:2])


def test_signatures():
    """Every form takes the same keywords, chunk one more."""
    keywords = lambda f: [p for p in inspect.signature(f).parameters.values() if p.name not in ("do", "dfinal_state", "chunk_size")]
    assert all(keywords(f) == keywords(m.loop) for f in (m.matrix, m.chunk, m.loop_lse, m.matrix_lse, m.chunk_lse, m.loop_vjp, m.matrix_vjp, m.chunk_vjp))
