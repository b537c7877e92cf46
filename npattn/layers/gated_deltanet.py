"""Gated DeltaNet, the linear-attention layer of Qwen3-Next and Qwen3.5: a short convolution, the gated delta rule, a gated norm.

    q | k | v, z, b, a = projections of x
    q | k | v = silu(conv(q | k | v))                    all channels, each over its own past (conv.py); z, b and a stay as they are
    q, k = q / sqrt(sum(q^2) + 1e-6), the same for k     per head; the delta rule scales q by K^-1/2 besides
    beta = sigmoid(b)
    g    = -e^A_log softplus(a + dt_bias)                log decay, one per value head, at most 0
    o    = gated delta rule of q, k, v, g, beta          value head h uses key head h // G
    y    = out_proj(norm.weight n silu(z))               n = o / sqrt(mean(o^2) + eps), per head over V: the norm first, then the gate

Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464.  H = key_heads, G = value heads per key head.

Weights: conv1d.weight (2 H K + H G V, 1, n), A_log and dt_bias (H G), norm.weight (V), out_proj.weight (C, H G V), and the projections in
one of two layouts:

    separate (Qwen3.5)       in_proj_qkv.weight (2 H K + H G V, C), in_proj_z.weight (H G V, C), in_proj_b.weight and in_proj_a.weight (H G, C)
    by key head (Qwen3-Next) in_proj_qkvz.weight and in_proj_ba.weight: the rows of one key head after the other, for each
                             q (K) | k (K) | v of its G value heads (G V) | z of the same (G V),  and  b (G) | a (G)

x, y (..., T, C).  mask (..., T), True for real tokens: the others enter as zeros.  Zeros before the first real token leave no trace; later
ones still decay the state, as in Transformers.
"""
from typing import Any, NamedTuple

from ..core.arguments import fit
from ..core.arrays import array_module
from ..core.functions import gated_rms_norm, gated_rms_norm_vjp, l2norm, l2norm_vjp, sigmoid, sigmoid_vjp, softplus, softplus_vjp
from ..core.heads import group, ungroup
from ..core.kinds import count
from ..delta import gated_delta_rule
from . import conv, linear
from .arguments import check_state, check_tokens


class State(NamedTuple):
    """What the layer remembers: of a size that does not depend on the number of tokens."""
    conv: Any                                            # (..., n, 2 H K + H G V)   the last inputs of the convolution
    S: Any                                               # (..., H G, K, V)


class Sizes(NamedTuple):
    H: int
    G: int
    K: int
    V: int


def forward(x, weights, *, key_heads, eps=1e-6, state=None, mask=None):
    """y (..., T, C) and the State after the last token; any split of x into calls gives the same."""
    check_tokens(x, mask)
    n, state = sizes(weights, key_heads), given("state", state)
    mix, z, b, a = project(hide(x, mask), weights, n)
    u, window = conv.forward(mix, weights, state=state.conv)                 # T 2HK+HGV
    q, k, v = split(u, n)                                                    # H 1 T K, H 1 T K, H G T V
    rule = gated_delta_rule.loop if x.shape[-2] == 1 else gated_delta_rule.chunk
    o, S = rule(l2norm(q), l2norm(k), v, g=decay(a, weights, n), beta=sigmoid(by_head(b, n)), state=grouped(state.S, n))
    o = gated_rms_norm(by_token(o), z, weights["norm.weight"], eps)          # T HG V
    return linear.forward(ungroup(o, -1), weights, "out_proj"), State(window, ungroup(S))


def vjp(dy, x, weights, *, key_heads, eps=1e-6, state=None, mask=None, dfinal_state=None):
    """(dx, dweights, dstate) of sum(y dy) + sum(final dfinal_state): the lines of `forward`, then backwards."""
    check_tokens(x, mask)
    n, state = sizes(weights, key_heads), given("state", state)
    hidden = hide(x, mask)                                                   # T C
    mix, z, b, a = project(hidden, weights, n)
    u, _ = conv.forward(mix, weights, state=state.conv)                      # T 2HK+HGV
    q, k, v = split(u, n)
    rule = dict(q=l2norm(q), k=l2norm(k), v=v, g=decay(a, weights, n), beta=sigmoid(by_head(b, n)), state=grouped(state.S, n))
    o = by_token(gated_delta_rule.chunk(**rule)[0])                          # T HG V
    dwindow, dS = given("dfinal_state", dfinal_state)

    dn, dout = linear.vjp(dy, ungroup(gated_rms_norm(o, z, weights["norm.weight"], eps), -1), weights, "out_proj")
    do, dz, dnorm = gated_rms_norm_vjp(dn.reshape(o.shape), o, z, weights["norm.weight"], eps)
    d = gated_delta_rule.chunk_vjp(by_head(do, n, -3), **rule, dfinal_state=grouped(dS, n))
    da, dgate = decay_vjp(d["g"], a, weights, n)
    db = sigmoid_vjp(by_token(d["beta"], -2), b)                             # T HG
    du = join(l2norm_vjp(d["q"], q), l2norm_vjp(d["k"], k), d["v"])          # T 2HK+HGV
    dmix, dconv, dwindow = conv.vjp(du, mix, weights, state=state.conv, dfinal_state=dwindow)
    dx, dproject = project_vjp(dmix, dz, db, da, hidden, weights, n)
    return fit(hide(dx, mask), x), {**dproject, **dconv, **dgate, "norm.weight": dnorm, **dout}, State(dwindow, ungroup(d["state"]))


# --- projections -------------------------------------------------------------------------------------------------

def project(x, weights, n):
    """q | k | v (..., T, 2 H K + H G V), z (..., T, H G, V), b and a (..., T, H G)."""
    H, G, K, V = n
    if "in_proj_qkv.weight" in weights:
        mix, z, b, a = (linear.forward(x, weights, f"in_proj_{part}") for part in ("qkv", "z", "b", "a"))
    else:
        xp = array_module(x)
        qkvz = group(linear.forward(x, weights, "in_proj_qkvz"), H, -1)      # T H 2K+2GV
        ba = group(linear.forward(x, weights, "in_proj_ba"), H, -1)          # T H 2G
        q, k, v, z = (ungroup(part, -1) for part in xp.split(qkvz, [K, 2 * K, 2 * K + G * V], axis=-1))
        b, a = (ungroup(part, -1) for part in xp.split(ba, 2, axis=-1))      # T HG, T HG
        mix = xp.concatenate([q, k, v], axis=-1)                             # T 2HK+HGV
    return mix, group(z, H * G, -1), b, a


def project_vjp(dmix, dz, db, da, x, weights, n):
    """(dx, dweights): every row back to where it came from."""
    H, dz = n.H, ungroup(dz, -1)
    if "in_proj_qkv.weight" in weights:
        d = dict(in_proj_qkv=dmix, in_proj_z=dz, in_proj_b=db, in_proj_a=da)
    else:
        xp = array_module(x)
        rows = lambda *parts: ungroup(xp.concatenate([group(part, H, -1) for part in parts], axis=-1), -1)
        dq, dk, dv = xp.split(dmix, [H * n.K, 2 * H * n.K], axis=-1)
        d = dict(in_proj_qkvz=rows(dq, dk, dv, dz), in_proj_ba=rows(db, da))
    pairs = [linear.vjp(part, x, weights, name) for name, part in d.items()]
    return sum(dx for dx, _ in pairs), {name: dW for _, dweights in pairs for name, dW in dweights.items()}


def hide(x, mask):
    """x, with zeros for what is no token."""
    return x if mask is None else array_module(x).where(mask[..., None], x, 0)


# --- gates -------------------------------------------------------------------------------------------------------

def decay(a, weights, n):
    """g = -e^A_log softplus(a + dt_bias), by head: (..., H, G, T)."""
    return by_head(-array_module(a).exp(weights["A_log"]) * softplus(a + weights["dt_bias"]), n)


def decay_vjp(dg, a, weights, n):
    """(da, {A_log: …, dt_bias: …}):  dg/dA_log is g itself."""
    dg, A, dt_bias = by_token(dg, -2), weights["A_log"], weights["dt_bias"]                  # T HG
    da = softplus_vjp(-array_module(a).exp(A) * dg, a + dt_bias)             # T HG
    return da, {"A_log": fit(dg * by_token(decay(a, weights, n), -2), A), "dt_bias": fit(da, dt_bias)}


def given(name, state):
    """`state`, either part of which may be None; that of None is None throughout."""
    check_state(name, state, State)
    return State(None, None) if state is None else state


# --- axes --------------------------------------------------------------------------------------------------------

def sizes(weights, key_heads):
    """H, G, K, V from the shapes of the weights."""
    H = count("key_heads", key_heads)
    V, heads, channels = weights["norm.weight"].shape[0], weights["A_log"].shape[0], weights["conv1d.weight"].shape[0]
    if heads % H or (channels - heads * V) % (2 * H):
        raise ValueError(f"key_heads = {H} does not fit A_log ({heads},), norm.weight ({V},) and the {channels} channels of conv1d.weight")
    return Sizes(H, heads // H, (channels - heads * V) // (2 * H), V)


def split(u, n):
    """q, k (..., H, 1, T, K) and v (..., H, G, T, V) from (..., T, 2 H K + H G V)."""
    q, k, v = array_module(u).split(u, [n.H * n.K, 2 * n.H * n.K], axis=-1)
    heads = lambda x, count: group(group(x, count, -1).swapaxes(-3, -2), n.H)
    return heads(q, n.H), heads(k, n.H), heads(v, n.H * n.G)


def join(*parts):
    """The inverse of `split`."""
    return array_module(*parts).concatenate([ungroup(by_token(part), -1) for part in parts], axis=-1)


def by_head(x, n, axis=-2):
    """(..., T, H G) to (..., H, G, T); for axis -3 (..., T, H G, V) to (..., H, G, T, V)."""
    return group(x.swapaxes(axis, axis + 1), n.H, axis)


def by_token(x, axis=-3):
    """The inverse of `by_head`."""
    return ungroup(x, axis).swapaxes(axis, axis + 1)


def grouped(S, n):
    return None if S is None else group(S, n.H)
