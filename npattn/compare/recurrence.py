"""The recurrences token by token, with the steps in any order: what an implementation computes that decays, predicts, writes or
reads at another time.

    decay      S = f[t] S                        f the factor of every channel, or one for all
    predict    u = w[t] v[t] - b[t] S^T k[t]     without this step u = w[t] v[t]; rightly w = b = beta
    write      S = S + k[t] u^T
    read       o[t] = scale S^T q[t]

As in the mechanisms, but the factors may be any numbers, and everything runs on the tape of npattn.proof.  Normalised linear
attention is linear attention with one more column of values, ones: that column of the state is the sum of the keys, and the outputs
are divided by it.
"""
import numpy as np

from ..core.states import Normalized
from ..linear.normalized_linear_attention import divide

ORDERS = dict(linear_attention="write read", normalized_linear_attention="write read", simple_gla="decay write read",
              gla="decay write read",
              delta_rule="predict write read", gated_delta_rule="decay predict write read", kda="decay predict write read",
              gated_delta_rule_predict_first="predict decay write read")


def by_steps(order, factor=np.exp, written=True, erased=True, across="K", stop="", normalized=False):
    """A form (q, k, v, *, g, beta, scale, state) -> o, state with the steps of `order`.

    factor: from a log gate to the factor.  written, erased: whether beta, or which function of it, multiplies the value, and the
    prediction.  across: "V" lets gates with one factor a channel fade columns of the state in place of rows.  stop: what the
    gradient does not pass, the "state" or "key" in the prediction, or the "normaliser".
    """
    def form(q, k, v, *, g=None, beta=None, scale=None, eps=0, state=None):
        S, v = start(k, v, state, normalized)                                # K V
        f, w, b = factors(g, factor, across), strength(beta, written), strength(beta, erased)
        q = (1 if normalized else max(q.shape[-1], 1) ** -0.5 if scale is None else scale) * q
        o = [q[..., :0, :] @ S]                                              # 0 V
        for t in range(q.shape[-2]):
            kt, u = k[..., t, None, :], w(t) * v[..., t, None, :]            # 1 K, 1 V
            for step in order.split():
                if step == "decay":
                    S = f(t) * S                                             # K V
                elif step == "predict":
                    u = u - b(t) * ((plain(kt) if stop == "key" else kt) @ (plain(S) if stop == "state" else S))     # 1 V
                elif step == "write":
                    S = S + kt.mT * u                                        # K V
                else:
                    o.append(q[..., t, None, :] @ S)                         # 1 V
        return finish(o, S, normalized, eps, stop)

    return form


def by_chunks(size, wrong):
    """A form that works in chunks of `size` tokens and gets one factor of the chunk formula wrong.

    What a chunk has to do with is H, its first state S faded up to the token, and N, the writes inside the chunk, each faded up to
    the token:

        u[t] = beta[t] (v[t] - (H + N)^T k[t]),   o[t] = scale (H + N)^T q[t],   next S = H + N

    wrong: "mask" reads N with nothing faded (a plain causal mask); "twice" fades H twice where it is predicted from; "sign" adds
    N^T k; "first" reads the first state unfaded; "carry" hands it on unfaded; "end" hands on writes unfaded; "padded" reads the sum
    of gates up to the end of a short last chunk behind its last token, where it is 0, so that what is handed on is divided by all
    decays of the chunk.
    """
    def form(q, k, v, *, g=None, beta=None, scale=None, state=None):
        S, v = start(k, v, state)                                            # K V
        f, b = factors(g, np.exp, "K"), strength(beta)
        q, T = (max(q.shape[-1], 1) ** -0.5 if scale is None else scale) * q, q.shape[-2]
        o = [q[..., :0, :] @ S]                                              # 0 V
        for begin in range(0, T, size):
            H, N, plainly, A = S, 0 * S, 0 * S, 1                            # K V, K V, K V
            for t in range(begin, min(begin + size, T)):
                kt, A = k[..., t, None, :], f(t) * A
                H, N = f(t) * H, f(t) * N                                    # K V, K V
                past = (A * H if wrong == "twice" else H) + (-N if wrong == "sign" else N)
                u = b(t) * (v[..., t, None, :] - (kt @ past if beta is not None else 0))             # 1 V
                N, plainly = N + kt.mT * u, plainly + kt.mT * u              # K V, K V
                o.append(q[..., t, None, :] @ ((S if wrong == "first" else H) + (plainly if wrong == "mask" else N)))
            short = wrong == "padded" and T - begin < size
            S = ((S if wrong == "carry" else H) + (plainly if wrong == "end" else N)) / (A if short else 1)
        return finish(o, S)

    return form


# --- parts -------------------------------------------------------------------------------------------------------

def start(k, v, state, normalized=False):
    """The first state, and the values; both with one more column where they are normalised."""
    lead, K, V = np.broadcast_shapes(k.shape[:-2], v.shape[:-2]), k.shape[-1], v.shape[-1]
    if not normalized:
        return np.zeros(lead + (K, V)) if state is None else state, v        # K V
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)               # T V+1
    return np.zeros(lead + (K, V + 1)) if state is None else np.concatenate([state.S, state.z[..., None]], axis=-1), v


def factors(g, factor, across):
    """The factors of token t, as they multiply a state K V."""
    if g is None:
        return lambda t: 1
    f = factor(g)                                                            # T, or T K; grouped arrays have three axes more
    if g.ndim == 4:
        return lambda t: f[..., t, None, None]                               # 1 1
    return lambda t: f[..., t, :, None] if across == "K" else f[..., t, None, :]


def strength(beta, used=True):
    """beta of token t, a function of it, or 1."""
    if beta is None or used is False:
        return lambda t: 1
    b = used(beta) if callable(used) else beta                               # T
    return lambda t: b[..., t, None, None]                                   # 1 1


def finish(o, S, normalized=False, eps=0, stop=""):
    o = np.concatenate(o, axis=-2)                                           # T V
    if normalized:
        n = plain(o[..., -1:]) if stop == "normaliser" else o[..., -1:]       # T 1
        return divide(o[..., :-1], n + eps), Normalized(S[..., :-1], S[..., -1])
    return o, S


def plain(x):
    """What is on the tape, as a number that it does not follow."""
    return getattr(x, "value", x)
