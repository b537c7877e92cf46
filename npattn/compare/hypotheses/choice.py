"""Block top-k attention: which blocks a query keeps."""
import numpy as np

from ...core.arrays import array_module
from ...core.blocks import blocks
from ...core.cached import scores, start_cached
from ...core.functions import l2norm_vjp, softmax
from ...core.heads import group, ungroup
from ...core.states import Cache
from ...softmax.softmax_attention import sight
from ...sparse.block_topk_attention import keep, means, rank, sees, whole
from ..case import normal, wrong
from ..hypothesis import Hypothesis
from .attention import is_causal, options, places


def chosen(keep, mean=means, see=None):
    """Attention over the blocks that keep(scores, own block of each query, topk, causal) gives."""
    def change(case):
        def form(q, k, v, *, block_size, topk, causal=False, scale=None, state=None):
            xp, q, k, v, n = start_cached(case.mechanism.axes, q, k, v, scale=scale, state=state)
            r = mean(k, block_size)                                          # blocks K
            c = sum(q[..., :, x, None] * r[..., None, :, x] for x in range(q.shape[-1])).real                # T blocks
            own = (n + np.arange(q.shape[-2])[:, None]) // block_size        # T 1
            kept = keep(getattr(c, "value", c), own, topk, causal)           # T blocks
            p = softmax(scores(q, k, None, sees(kept, n, whole(q), whole(k), block_size, causal and see is None)))         # T n+N
            return p @ v, Cache(k, v)                                        # T V
        return wrong(case, form=form)
    return change


def rightly(c, own, topk, causal):
    b = np.arange(c.shape[-1])
    return (rank(np, np.where(b < own, c, -np.inf)) < topk - 1) & (b < own) | (b == own) if causal else rank(np, c) < topk


def own_unforced(c, own, topk, causal):
    b = np.arange(c.shape[-1])
    return (rank(np, np.where(b <= own, c, -np.inf)) < topk) & (b <= own)


def past_only(c, own, topk, causal):
    b = np.arange(c.shape[-1])
    return (rank(np, np.where(b < own, c, -np.inf)) < topk) & (b < own)


def any_block(c, own, topk, causal):
    b = np.arange(c.shape[-1])
    return (rank(np, np.where(b != own, c, -np.inf)) < topk - 1) & (b != own) | (b == own)


def shifted(by):
    """The chosen earlier blocks, moved by one."""
    def keep(c, own, topk, causal):
        b = np.arange(c.shape[-1])
        kept = rightly(c, own, topk, causal) & (b != own if causal else True)
        moved = np.roll(kept, by, -1)
        moved[..., 0 if by > 0 else -1] = False
        return moved | (b == own) if causal else moved
    return keep


def padded_means(k, block_size):
    """The mean over block_size keys, those that are missing counted as zeros."""
    parts = [k[..., b, :].sum(-2, keepdims=True) / block_size for b in blocks(k.shape[-2], block_size)]
    return array_module(k).concatenate(parts, axis=-2)


TOPK = "block_topk_attention"
CHOICE = "topk counts the own block, which is always kept; the others are the best of those that lie before it."
BLOCKS = (
    Hypothesis("one block too many", "choice", options(topk=lambda c: c.options["topk"] + 1),
               "topk + 1 blocks are kept: the own one is not counted.", CHOICE,
               "more blocks than topk", only=TOPK),
    Hypothesis("one block too few", "choice", options(topk=lambda c: c.options["topk"] - 1), "topk - 1 blocks are kept.", CHOICE,
               "topk of at least 2", only=TOPK,
               when=lambda c: c.options["topk"] > 1),
    *(Hypothesis(f"chosen blocks one too {which}", "choice", chosen(shifted(by)),
                 f"The blocks next to the chosen ones are read, one {which}.",
                 "Count blocks from 0.", "more blocks than topk", only=TOPK, whole=True) for which, by in (("early", -1), ("late", 1))),
    Hypothesis("own block not forced", "choice", chosen(own_unforced), "The own block competes with the earlier ones, by its mean.", CHOICE,
               "more blocks than topk", only=TOPK,
               meant=is_causal, whole=True),
    Hypothesis("own block left out", "choice", chosen(past_only), "Only blocks before the own one are kept.", CHOICE, "any inputs",
               only=TOPK, meant=is_causal),
    Hypothesis("future blocks chosen", "choice", chosen(any_block),
               "Blocks that lie ahead compete too; their tokens are hidden afterwards, and the places are lost.",
               "Leave blocks that lie ahead out of the ranking.", "more blocks than topk", only=TOPK, meant=is_causal, whole=True),
    Hypothesis("own block without causal mask", "causal", chosen(rightly, see="all"), "Inside its own block a token sees later ones.",
               "Hide the keys j > i there as well.",
               "a block size over 1", only=TOPK, meant=is_causal, whole=True),
    Hypothesis("ragged block's mean over padding", "mean", chosen(rightly, padded_means),
               "The mean key of the last, shorter block is divided by the block size.",
               "Divide by the number of keys that there are.",
               "a number of keys that is no multiple of the block size, and a choice that depends on it", only=TOPK, whole=True,
               when=lambda c: (places(c)[1] + places(c)[2]) % c.options["block_size"] != 0))


# --- gradients ---------------------------------------------------------------------------------------------------

def seen(q, k, n, case):
    """Which queries look at which keys: (…, T, n + N), for softmax attention too."""
    if "topk" in case.options:
        kept = keep(q, means(k, case.options["block_size"]), n, whole(q), case.options["block_size"], case.options["topk"], is_causal(case))
        return sees(kept, n, whole(q), whole(k), case.options["block_size"], is_causal(case))
    mask = case.arrays["mask"][:, :, None] if "mask" in case.arrays else None            # heads are not grouped where one stands for all
    _, see, _ = sight(q, k, n, is_causal(case), mask, None, case.options.get("window"))
    see = see(whole(q), whole(k))
    return np.ones((1, 1), bool) if see is None else see


def last_query(y, case):
    """dk and dv of the last query alone that sees a key: what is left where each overwrites what came before."""
    if case.real is not None or case.cu_seqlens is not None or "bias" in case.arrays or case.arrays.get("mask",
                                                                                                        np.ones((1, 1))).shape[1] > 1:
        raise ValueError("not for these inputs")
    x = normal(case.arrays) if case.l2norm else case.arrays
    few = x["k"].shape[1]
    q, k, v, do = (group(x[name], few, 1 - x[name].ndim) for name in ("q", "k", "v", "do"))
    old = [group(x["state." + name], few, 1 - x[name].ndim) for name in "kv"] if "state.k" in x else None
    xp, q, k, v, n = start_cached(case.mechanism.axes, q, k, v, scale=case.options.get("scale"), state=old and Cache(*old))
    see = np.broadcast_to(seen(q, k, n, case), q.shape[:-1] + k.shape[-2:-1])            # T n+N
    last = see & (np.cumsum(see[..., ::-1, :], -2)[..., ::-1, :] == 1)                   # T n+N
    p = softmax(scores(q, k, None, see))                                     # T n+N
    dp = do @ v.mT                                                           # T n+N
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))                          # T n+N
    d = dict(k=(ds * last).mT @ q, v=(p * last).mT @ do)
    d = {name: ungroup(part.sum(2, keepdims=True), 1 - part.ndim + 1)[:, :, n:] for name, part in d.items()}
    dk = l2norm_vjp(d["k"], case.arrays["k"]) if case.l2norm else d["k"]
    return y | dict(dk=dk, dv=d["v"])


LAST = (Hypothesis("keys get the gradient of the last query only", "dk dv", lambda case: wrong(case, add_gradients=last_query),
                   "dk and dv hold what the last query that sees a key sends, not the sum over all queries.",
                   "Add up over all queries that see the key.",
                   "keys that several queries see", only=f"softmax_attention {TOPK}", when=lambda c: "dk" in c.got or "dv" in c.got,
                   back=True),)
