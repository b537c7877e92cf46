"""Choosing the next token: the likeliest, or one drawn at random."""
import sys

import numpy

from ..core.arrays import array_module
from ..core.functions import softmax


def choose(logits, temperature=0, top_k=None, top_p=None, rng=None):
    """One token (...) for logits (..., vocabulary): for temperature 0 the likeliest (of equals the lowest), else drawn.

    It is drawn from softmax(logits / temperature) by `rng`, a NumPy Generator: of the top_k likeliest, and of these, their probabilities
    made to sum to 1, the fewest likeliest that reach top_p.

    >>> choose(numpy.array([[0., 2, 2], [1, 0, 0]])).tolist()
    [1, 0]
    """
    xp = array_module(logits)
    if temperature == 0:
        return logits.argmax(-1)
    order = xp.argsort(-logits, axis=-1, kind="stable")                      # vocabulary   the likeliest first
    p = softmax(xp.take_along_axis(logits, order, axis=-1) / temperature)
    if top_k is not None:
        p = xp.where(xp.arange(p.shape[-1]) < top_k, p, 0)
        p = p / p.sum(-1, keepdims=True)
    if top_p is not None and top_p < 1:
        p = xp.where(running_sum(p) - p < top_p, p, 0)
    below = running_sum(p)                                                         # vocabulary
    u = xp.asarray(rng.random(p.shape[:-1]))[..., None] * below[..., -1:]    # 1
    return xp.take_along_axis(order, (below <= u).sum(-1, keepdims=True), axis=-1)[..., 0]


def running_sum(p):
    """In float64 at least: a float32 sum of 250 000 probabilities stands still before its end, and that end would never be drawn."""
    return array_module(p).cumsum(p, -1, dtype=numpy.result_type(p.dtype, numpy.float64))


def progress(done, total, seconds):
    """A line on stderr, if that is a terminal, from the third second on; `done` = 0 wipes it away."""
    if seconds > 2 and sys.stderr.isatty():
        text = f"{done} of {total} tokens, {done / seconds:.1f} a second" if done else ""
        print(f"\r{text:<60}" + ("" if done else "\r"), end="", file=sys.stderr, flush=True)
