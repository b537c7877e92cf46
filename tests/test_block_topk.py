"""Block top-k attention: which blocks are kept, by hand and by brute force, ties, short blocks, caches; and that the choice carries no gradient."""
from functools import partial
import tracemalloc

import numpy as np
import pytest

from npattn import block_topk_attention, softmax_attention
from npattn.core.states import Cache
from npattn.sparse.block_topk_attention import select

rng = np.random.default_rng(0)
m = block_topk_attention
SIZES = (1, 3, 4, 64)
FORMS = {"loop": m.loop, "matrix": m.matrix, **{f"chunk of {C}": partial(m.chunk, chunk_size=C) for C in SIZES}}
VJPS = {"loop": m.loop_vjp, "matrix": m.matrix_vjp, **{f"chunk of {C}": partial(m.chunk_vjp, chunk_size=C) for C in SIZES}}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
every_vjp = pytest.mark.parametrize("vjp", VJPS.values(), ids=VJPS)


def normal(*shape):
    return rng.standard_normal(shape)


def close(x, wanted, tolerance=1e-13):
    assert np.shape(x) == np.shape(wanted)
    np.testing.assert_allclose(x, wanted, rtol=tolerance, atol=tolerance)


def brute_force(q, k, block_size, topk, causal, n=0):
    """The kept blocks of one head from the dense scores: q (T, K), k (n + N, K)."""
    kept = np.zeros((len(q), -(-len(k) // block_size)), bool)
    for i, row in enumerate(q @ k.T * q.shape[-1] ** -0.5):
        means = [row[start:start + block_size].mean() for start in range(0, len(k), block_size)]
        own = (n + i) // block_size
        best = sorted(range(min(own, len(means)) if causal else len(means)), key=lambda b: -means[b])       # sorted keeps the order of equals
        for b in [own, *best[:topk - 1]] if causal else best[:topk]:
            if b < len(means):
                kept[i, b] = True
    return kept


# --- by hand ---------------------------------------------------------------------------------------------------------

@every_form
def test_three_blocks_by_hand(form):
    """q = 0 would tie, so the sign of q ranks the mean keys 2, 4, 9; weights within the kept blocks are softmax: with k = ln 2 or 0, 2 to 1."""
    ln2 = np.log(2)
    k, v = np.array([[ln2], [0], [-ln2], [-ln2], [2 * ln2]]), np.array([[3.], [6], [100], [100], [1]])
    o, state = form(np.array([[1.], [-1]]), k, v, block_size=2, topk=2, scale=1)
    close(o, [[(2 * 3 + 1 * 6 + 4 * 1) / 7], [(.5 * 3 + 1 * 6 + 2 * 100 + 2 * 100) / 5.5]])                  # means ln2/2, -ln2, 2 ln2
    assert (state.k == k).all() and (state.v == v).all()


@every_form
def test_ties_go_to_the_lower_block(form):
    """All keys equal: o is the mean of v over what is kept."""
    x, v = np.ones((12, 3)), np.arange(12.)[:, None]
    close(form(x, x, v, block_size=3, topk=2)[0], np.full((12, 1), np.mean([0, 1, 2, 3, 4, 5])))
    o = form(x, x, v, block_size=3, topk=2, causal=True)[0]
    seen = [{*range(3), *range(t // 3 * 3, t + 1)} & {*range(t + 1)} for t in range(12)]                     # block 0 and the own one
    close(o[:, 0], [np.mean([*s]) for s in seen])


@every_form
def test_one_block_is_the_own_block(form):
    v = np.arange(7.)[:, None]
    o = form(np.zeros((7, 2)), normal(7, 2), v, block_size=3, topk=1, causal=True)[0]
    close(o[:, 0], [0, .5, 1, 3, 3.5, 4, 6])


def test_a_short_block_is_the_mean_of_what_it_holds():
    """Mean keys 2 and 3: divided by the block size the last would be 1."""
    k = np.array([[2.], [2], [2], [3]])
    assert select(np.ones((1, 1)), k, block_size=3, topk=1).tolist() == [[False, True]]


# --- the check of the founding script --------------------------------------------------------------------------------

@every_form
@pytest.mark.parametrize("L", [12, 13])
def test_exactly_topk_blocks_a_row(form, L):
    q, k, v = normal(L, 6), normal(L, 6), normal(L, 6)
    kept = select(q, k, block_size=4, topk=2)
    assert kept.shape == (L, -(-L // 4)) and (kept.sum(-1) == 2).all() and (kept == brute_force(q, k, 4, 2, False)).all()
    weights = form(q, k, np.eye(L), block_size=4, topk=2)[0]
    close(weights.sum(-1), np.ones(L))
    assert ((weights > 0) == np.repeat(kept, 4, axis=-1)[:, :L]).all()
    close(form(q, k, v, block_size=4, topk=2)[0], weights @ v)


# --- the choice ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T, N, n", [(13, 13, 0), (5, 13, 0), (13, 5, 0), (9, 9, 4), (1, 1, 11), (0, 4, 1), (4, 0, 3), (2, 0, 0)])
@pytest.mark.parametrize("block_size, topk", [(1, 3), (4, 1), (4, 2), (5, 3), (20, 1)])
def test_choice_is_that_of_the_dense_scores(block_size, topk, T, N, n, causal):
    q, k, old, v = normal(3, T, 4), normal(1, N, 4), normal(1, n, 4), normal(1, n + N, 2)
    options = dict(block_size=block_size, topk=topk, causal=causal)
    kept, keys = select(q, k, **options, state=Cache(old, v[:, :n])), np.concatenate([old, k], 1)
    for h in range(3):
        assert (kept[h] == brute_force(q[h], keys[0], block_size, topk, causal, n)).all()
    wanted = softmax_attention.loop(q, k, v[:, n:], causal=causal, mask=np.repeat(kept, block_size, axis=-1)[..., :n + N], state=Cache(old, v[:, :n]))
    for form in FORMS.values():
        o, state = form(q, k, v[:, n:], **options, state=Cache(old, v[:, :n]))
        close(o, wanted[0])
        assert (state.k == keys).all() and (state.v == v).all()


@every_form
@pytest.mark.parametrize("causal", [True, False])
def test_all_blocks_are_softmax_attention(form, causal):
    q, k, v = normal(2, 13, 4), normal(2, 13, 4), normal(2, 13, 3)
    for topk in 4, 99:
        close(form(q, k, v, block_size=4, topk=topk, causal=causal)[0], softmax_attention.loop(q, k, v, causal=causal)[0])


@every_form
def test_a_prefix_knows_nothing_of_the_rest(form):
    """Were the short last block ranked, it would be another block once it is full."""
    q, k, v = normal(23, 4), normal(23, 4), normal(23, 3)
    o = form(q, k, v, block_size=4, topk=2, causal=True)[0]
    for T in range(1, 24):
        close(form(q[:T], k[:T], v[:T], block_size=4, topk=2, causal=True)[0], o[:T])


def test_ties_in_every_split():
    """Few different values and a scale that rounds: many equal scores, which every way of cutting the sequence into calls must rank alike."""
    q, k = (rng.integers(-1, 2, (2, 40, 5)) / 3 for _ in range(2))
    options = dict(block_size=3, topk=3, causal=True, scale=.3)
    kept = select(q, k, **options)
    scores = np.sort(q @ k[:, :39].reshape(2, 13, 3, 5).mean(2).mT)
    assert (np.diff(scores) < 1e-12).sum() > 100         # there are ties to rank
    wanted = m.loop(q, k, k, **options)[0]
    for size in 1, 2, 7, 16:
        state, rows, o = None, [], []
        for s in range(0, 40, size):
            part = [x[:, s:s + size] for x in (q, k, k)]
            rows.append(np.pad(x := select(*part[:2], **options, state=state), ((0, 0), (0, 0), (0, kept.shape[-1] - x.shape[-1]))))
            y, state = m.matrix(*part, **options, state=state)
            o.append(y)
        assert (np.concatenate(rows, 1) == kept).all()
        close(np.concatenate(o, 1), wanted)


# --- gradients -------------------------------------------------------------------------------------------------------

@every_vjp
@pytest.mark.parametrize("causal", [True, False])
def test_the_choice_carries_no_gradient(vjp, causal):
    """The gradient is that of softmax attention with the choice as a fixed mask; keys that nobody kept get exactly 0, though their mean was ranked."""
    q, k, v, do, old = normal(2, 3, 9, 4), normal(2, 1, 9, 4), normal(3, 9, 3), normal(2, 3, 9, 3), Cache(normal(1, 4, 4), normal(3, 4, 3))
    options, dfinal = dict(block_size=3, topk=2, causal=causal), Cache(normal(2, 3, 13, 4), normal(2, 3, 13, 3))
    mask = np.repeat(select(q, k, **options, state=old), 3, axis=-1)[..., :13]
    d = vjp(do, q, k, v, **options, state=old, dfinal_state=dfinal)
    wanted = softmax_attention.loop_vjp(do, q, k, v, mask=mask, causal=causal, state=old, dfinal_state=dfinal)
    assert set(d) == {"q", "k", "v", "state"}
    for x, y in zip((d["q"], d["k"], d["v"], *d["state"]), (wanted["q"], wanted["k"], wanted["v"], *wanted["state"])):
        close(x, y)
    k[..., 3:6, :] -= 100 * q[:, :, :1].sum(1, keepdims=True)                # out of the first query's choice
    kept = select(q[:, :, :1], k, **options | dict(causal=False, topk=1))
    d = vjp(do[:, :, :1], q[:, :, :1], k, v, **options | dict(causal=False, topk=1))
    unseen = ~np.repeat(kept, 3, axis=-1)[..., :9].any((1, 2))
    assert unseen.any() and (d["k"][:, 0][unseen] == 0).all()


def test_output_jumps_where_the_choice_changes():
    """Two blocks of one key; the first is kept until the second overtakes it."""
    o = [m.loop(np.ones((1, 1)), np.array([[1.], [x]]), np.array([[5.], [7]]), block_size=1, topk=1)[0].item() for x in (.999, 1, 1.001)]
    assert o == [5, 5, 7]


@every_form
def test_every_query_head_chooses(form):
    """Heads that share keys are as if each had a copy of them."""
    q, k, v = normal(2, 3, 12, 4), normal(2, 1, 12, 4), normal(2, 1, 12, 3)
    wide = lambda x: np.repeat(x, 3, axis=1)
    options = dict(block_size=3, topk=2, causal=True)
    close(form(q, k, v, **options)[0], form(q, wide(k), wide(v), **options)[0])
    kept = select(q, k, **options)
    assert (kept == select(q, wide(k), **options)).all() and (kept[:, 0] != kept[:, 1]).any()


@pytest.mark.parametrize("form", [m.chunk, partial(m.chunk_vjp, normal(2048, 2))])
def test_memory(form):
    """Tiles of 64: far from the 32 MiB that 2048 by 2048 scores take."""
    x = normal(2048, 2)
    tracemalloc.start()
    form(x, x, x, block_size=64, topk=4, causal=True, chunk_size=64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 ** 20


# --- what is refused -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("error, message, options", [
    (ValueError, "block_size must be an integer of at least 1, not 0", dict(block_size=0, topk=1)),
    (ValueError, "topk must be an integer of at least 1, not 0", dict(block_size=2, topk=0)), (ValueError, "topk", dict(block_size=2, topk=1.)),
    (TypeError, "state must be a Cache, not ndarray", dict(block_size=2, topk=1, state=np.ones((3, 2))))])
def test_refused(error, message, options):
    x = np.ones((3, 2))
    for form in m.loop, m.matrix, m.chunk, *(partial(vjp, x) for vjp in (m.loop_vjp, m.matrix_vjp, m.chunk_vjp)), lambda q, k, v, **o: select(q, k, **o):
        with pytest.raises(error, match=message):
            form(x, x, x, **options)
    with pytest.raises(ValueError, match=r"K is 2 in q and 3 in k: q \(3, 2\), k \(3, 3\)"):
        select(x, np.ones((3, 3)), block_size=2, topk=1)
    for form in m.chunk, partial(m.chunk_vjp, x):
        with pytest.raises(ValueError, match="chunk_size must be"):
            form(x, x, x, block_size=2, topk=1, chunk_size=0)
