"""Causal depthwise convolution, then SiLU: every channel is a short filter over its own past.

    p       = state, x                                   one after the other: n + T rows of C channels
    y[t, c] = sum over taps j of w[c, j] p[t + 1 + j, c] the last tap, n - 1, meets the current token
    final   = the last n rows of p                       inputs as they came, before filter and SiLU

n taps need n - 1 earlier tokens; like the Hugging Face cache the state keeps n, the oldest of which is never read again.
The filter alone is `loop` and `matrix` (with their gradients), rational; the layer with SiLU is `forward` and `vjp`.

x, y (..., T, C); w (C, n); state (..., n, C), None is zeros; weights: conv1d.weight (C, 1, n).
"""
import numpy

from ..core.arguments import check, fit
from ..core.arrays import array_module
from ..core.functions import silu, silu_vjp

AXES = dict(x="T C", w="C n", o="T C", state="n C")


def loop(x, w, *, state=None):
    """Tap by tap: a shifted copy of the inputs for each.  Returns y (..., T, C) and the final state (..., n, C).

    >>> import numpy as np
    >>> y, state = loop(10. ** np.arange(5)[:, None], np.array([[1., 2, 3, 4]]))
    >>> y[:, 0].tolist(), state[:, 0].tolist()           # the digits show which token met which tap
    ([4.0, 43.0, 432.0, 4321.0, 43210.0], [10.0, 100.0, 1000.0, 10000.0])
    """
    p, T, n = joined(x, w, state)                                            # n+T C
    y = p[..., n:, :] * w[:, n - 1]
    for j in range(n - 1):
        y = y + p[..., 1 + j:1 + j + T, :] * w[:, j]                         # T C
    return y, p[..., T:, :].copy()                                           # a view would keep all of p for n rows of it


def matrix(x, w, *, state=None):
    """All tokens at once: for every channel a banded T by n + T matrix, w[c, j] on its (1 + j)-th diagonal, times p."""
    p, T, n = joined(x, w, state)                                            # n+T C
    y = banded(w, T) @ p.mT[..., None]                                       # C T 1
    return y[..., 0].mT, p[..., T:, :].copy()


def loop_vjp(dy, x, w, *, state=None, dfinal_state=None):
    """(dx, dw, dstate) of sum(y dy) + sum(final dfinal_state), tap by tap:  dp[t + 1 + j] += w[j] dy[t],  dw[j] = sum over t of dy[t] p[t + 1 + j].

    Where fewer than n tokens came, the final state still holds rows of the first one, and their gradient goes back to it.
    """
    p, T, n = joined(x, w, state, dy, dfinal_state)                          # n+T C
    xp = array_module(x)
    dp = xp.zeros(p.shape, numpy.result_type(p.dtype, w.dtype, dy.dtype))                      # n+T C
    if dfinal_state is not None:
        dp[..., T:, :] += dfinal_state
    dw = []
    for j in range(n):
        dp[..., 1 + j:1 + j + T, :] += dy * w[:, j]
        dw.append((dy * p[..., 1 + j:1 + j + T, :]).reshape(-1, x.shape[-1]).sum(0))         # C
    return fit(dp[..., n:, :], x), fit(xp.stack(dw, axis=-1), w), start(dp[..., :n, :], state)


def matrix_vjp(dy, x, w, *, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: dp = B^T dy, and every tap collects its diagonal of dB = dy p^T."""
    p, T, n = joined(x, w, state, dy, dfinal_state)                          # n+T C
    xp = array_module(x)
    dp = (banded(w, T).mT @ dy.mT[..., None])[..., 0].mT                     # n+T C
    dB = dy.mT[..., :, None] * p.mT[..., None, :]                            # C T n+T
    dw = xp.stack([xp.diagonal(dB, 1 + j, -2, -1).sum(-1) for j in range(n)], axis=-1)       # C n
    if dfinal_state is not None:
        dp = dp + xp.concatenate([xp.zeros_like(x), dfinal_state], axis=-2)
    return fit(dp[..., n:, :], x), fit(dw, w), start(dp[..., :n, :], state)


def forward(x, weights, *, state=None):
    """silu of the filtered x, and the final state: any split of x into calls gives the same.

    >>> import numpy as np
    >>> forward(np.array([[-1.]]), {"conv1d.weight": np.array([[[0., 1]]])})[0].round(4).tolist()
    [[-0.2689]]
    """
    y, state = loop(x, taps(weights), state=state)
    return silu(y), state


def vjp(dy, x, weights, *, state=None, dfinal_state=None):
    """(dx, dweights, dstate) of sum(y dy) + sum(final dfinal_state)."""
    w = taps(weights)
    y, _ = loop(x, w, state=state)
    dx, dw, dstate = loop_vjp(silu_vjp(dy, y), x, w, state=state, dfinal_state=dfinal_state)
    return dx, {"conv1d.weight": dw[:, None, :]}, dstate


def taps(weights):
    w = weights["conv1d.weight"]
    if w.ndim != 3 or w.shape[1] != 1:
        raise ValueError(f"conv1d.weight must be (C, 1, n), not {w.shape}")
    return w[:, 0, :]                                                        # C n


def joined(x, w, state, dy=None, dfinal_state=None):
    """(p, T, n) after checking every argument."""
    sizes = check(AXES, dict(x=x, w=w, **{} if dy is None else dict(do=dy), state=state, dfinal_state=dfinal_state))
    xp, T, C, n = array_module(x), sizes["T"], sizes["C"], sizes["n"]
    lead = x.shape[:-2] if state is None else numpy.broadcast_shapes(x.shape[:-2], state.shape[:-2])
    if state is None:
        state = xp.zeros((n, C), x.dtype)
    state, x = xp.broadcast_to(state, lead + (n, C)), xp.broadcast_to(x, lead + (T, C))
    return xp.concatenate([state, x], axis=-2), T, n


def banded(w, T):
    """B (C, T, n + T) with y = B p."""
    xp, n = array_module(w), w.shape[-1]
    return sum(w[:, j, None, None] * xp.eye(T, n + T, 1 + j, dtype=w.dtype) for j in range(n))


def start(dstate, state):
    """The gradient of the first state; of zeros, if none was given."""
    return dstate if state is None else fit(dstate, state)
