"""Every row of the table of hypotheses is recognised: dumps with one flaw, made by plain loops that share nothing with the package.

    recurrence      token by token, one head at a time, with every convention as an argument
    in_chunks       the chunk formula with its decays as differences of cumulative sums, one factor of it wrong
    backwards       the adjoint recurrence, with what may be forgotten on the way
    attention       query by query
"""
import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.compare import diagnose
from npattn.compare.hypotheses import HYPOTHESES

GATES = dict(simple_gla=1, gla=2, gated_delta_rule=1, kda=2)                 # axes of a gate: tokens, channels
DELTA = ("delta_rule", "gated_delta_rule", "kda")
ROWS = {row.name: row for row in HYPOTHESES}


# --- plain loops -------------------------------------------------------------------------------------------------

def inputs(name, T=20, H=2, G=2, K=4, V=3, state=True, seed=0, short=1.0, B=1):
    """Arguments in layout bthd, every number different."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal
    x = dict(q=short * normal((B, T, H, K)), k=0.5 * short * normal((B, T, H, K)), v=normal((B, T, H * G, V)))
    if name == "normalized_linear_attention":
        x |= dict(q=np.abs(x["q"]), k=np.abs(x["k"]))
    if name in GATES:
        x["g"] = -0.5 * np.abs(normal((B, T, H * G, K)[:2 + GATES[name]] if GATES[name] == 1 else (B, T, H * G, K)))
    if name in DELTA:
        x["beta"] = rng.uniform(0.1, 0.9, (B, T, H * G))
    if state and name == "normalized_linear_attention":
        x |= {"state.S": normal((B, H * G, K, V)), "state.z": np.abs(normal((B, H * G, K)))}
    elif state:
        x["state"] = normal((B, H * G, K, V))
    return x


def head_loop(q, k, v, a, w, e, S, order, before=lambda t, S: S):
    """One head: a (T, K) factors, w and e (T) strengths of value and prediction."""
    o = []
    for t in range(len(q)):
        S, u, read = before(t, S), w[t] * v[t], None
        for step in order.split():
            if step == "decay":
                S = a[t][:, None] * S
            elif step == "columns":
                S = S * a[t][None, :]
            elif step == "predict":
                u = u - e[t] * (S.T @ k[t])
            elif step == "write":
                S = S + np.outer(k[t], u)
            elif step == "read":
                read = S.T @ q[t]
        o.append(read)
    return np.array(o).reshape(len(q), v.shape[1]), S


def recurrence(name, x, scale=None, order="decay predict write read", factor=np.exp, written=True, erased=True,
               key_head=lambda h, H, G: h // G, columns=False,
               unit=None, before=lambda t, S: S, one=head_loop):
    """(o, final_state) in layout bthd."""
    (B, T, HV, V), H, K = x["v"].shape, x["q"].shape[2], x["q"].shape[3]
    order = " ".join(step for step in order.split() if (step != "decay" or "g" in x) and (step != "predict" or "beta" in x))
    order = order.replace("decay", "columns") if columns else order
    o, final = np.zeros((B, T, HV, V)), np.zeros((B, HV, K, V))
    unit = unit or (lambda y: y, lambda y: y)
    for b, h in np.ndindex(B, HV):
        j = key_head(h, H, HV // H)
        q, k, v = unit[0](x["q"][b, :, j]) * (K ** -0.5 if scale is None else scale), unit[1](x["k"][b, :, j]), x["v"][b, :, h]
        g = x["g"][b, :, h].reshape(T, 1 if GATES[name] == 1 else K) if "g" in x else np.zeros((T, 1))
        a = factor(g) * np.ones((1, K)) if "g" in x else np.ones((T, K))
        beta, ones = x["beta"][b, :, h] if "beta" in x else np.ones(T), np.ones(T)
        S = x["state"][b, h] if "state" in x else np.zeros((K, V))
        o[b, :, h], final[b, h] = one(q, k, v, a, beta if written else ones,
                                     erased(beta) if callable(erased) else beta if erased else ones, S, order, before)
    return o, final


def in_chunks(C, wrong):
    """`one` for recurrence: the chunk formula, decays as differences of sums, with a factor wrong."""
    def one(q, k, v, a, b, _, S, order, before):
        o, T = [], len(q)
        for s in range(0, T, C):
            i = slice(s, min(s + C, T))
            Q, Y, X, G, n = q[i], k[i], v[i], np.cumsum(np.log(a[i]), 0), min(C, T - s)
            D = np.exp(np.where(np.tri(n, dtype=bool)[:, :, None], G[:, None] - G[None], -np.inf))        # i j K
            P, L = np.einsum("ik,jk,ijk->ij", Q, Y, D), np.tril(np.einsum("ik,jk,ijk->ij", Y, Y, D), -1)
            first, last, end = np.exp(G), np.exp(G[-1]), np.exp(G[-1] - G)
            if "predict" in order:
                past = first ** 2 if wrong == "twice" else first
                d = np.linalg.solve(np.eye(n) + (-1 if wrong == "sign" else 1) * b[i, None] * L, b[i, None] * (X - (past * Y) @ S))
            else:
                d = X
            o.append((Q if wrong == "first" else first * Q) @ S + (np.tril(Q @ Y.T) if wrong == "mask" else P) @ d)
            if wrong == "padded" and n < C:
                last, end = np.ones_like(last), np.exp(-G)
            S = (S if wrong == "carry" else last[:, None] * S) + ((Y if wrong == "end" else end * Y).T @ d)
        return np.concatenate(o), S
    return one


def normalised(x, divide=lambda n: n, z_first=True, strict=False, before=lambda t: False):
    """(o, S, z) of normalised linear attention."""
    (B, T, HV, V), G = x["v"].shape, x["v"].shape[2] // x["q"].shape[2]
    K = x["q"].shape[3]
    o, Ss, zs = np.zeros((B, T, HV, V)), np.zeros((B, HV, K, V)), np.zeros((B, HV, K))
    for b, h in np.ndindex(B, HV):
        q, k, v = x["q"][b, :, h // G], x["k"][b, :, h // G], x["v"][b, :, h]
        S, z = (x["state.S"][b, h], x["state.z"][b, h] if z_first else np.zeros(K)) if "state.S" in x else (np.zeros((K, V)), np.zeros(K))
        for t in range(T):
            if before(t):
                S, z = 0 * S, 0 * z
            old = S, z
            S, z = S + np.outer(k[t], v[t]), z + k[t]
            R, r = old if strict else (S, z)
            o[b, t, h] = (R.T @ q[t]) / divide(r @ q[t]) if r @ q[t] else 0
        Ss[b, h], zs[b, h] = S, z
    return o, Ss, zs


def attention(x, see=lambda i, j: j <= i, scale=None, bias=None, weights=lambda w, m: w / w.sum(), kept=None,
              key_head=lambda h, H, G: h // G):
    """Softmax attention, query by query; the scores are n + T wide where keys are cached.  bias (Hq, T, n + T)."""
    k, v = (np.concatenate([x["state." + n], x[n]], 1) if "state." + n in x else x[n] for n in "kv")
    (B, T, Hq, K), H = x["q"].shape, k.shape[2]
    o = np.zeros((B, T, Hq, v.shape[3]))
    for b, i, h in np.ndindex(B, T, Hq):
        j0 = key_head(h, H, Hq // H)
        js = [j for j in range(k.shape[1]) if see(i, j) and (kept is None or kept(b, i, h, j))]
        if js:
            s = np.array([(K ** -0.5 if scale is None else scale) * (x["q"][b, i, h] @ k[b, j, j0]) + (0 if bias is None else bias[h, i, j])
                          for j in js])
            o[b, i, h] = weights(np.exp(s - s.max()), s.max()) @ v[b, js, j0]
    return o


def softmax_inputs(T=20, H=2, G=2, K=4, V=3, n=0, seed=1, N=None):
    normal = np.random.default_rng(seed).standard_normal
    x = dict(q=normal((1, T, H * G, K)), k=normal((1, N or T, H, K)), v=normal((1, N or T, H, V)))
    return x | ({"state.k": normal((1, n, H, K)), "state.v": normal((1, n, H, V))} if n else {})


# --- recognised --------------------------------------------------------------------------------------------------

def named(dump, row, pairs=False, most=8):
    """The Diagnosis, after checking that it names the row, or that the row is among those that these inputs do not tell from what
    it names.
    """
    found = diagnose({key: y for key, y in dump.items() if y is not None}, pairs=pairs)
    assert found.verdict == "explained", (row, found.headline, found.picture)
    first = found.explanations[0]
    assert (row,) == first.names or (row,) in first.equals, (row, first.name, first.equals)
    assert first.error < 1e-9 and len(first.equals) <= most and set(first.errors) == {one.name for one in found.report.rows}
    assert not first.equals or "These inputs do not tell it from" in str(found)
    SEEN.setdefault(row, set()).add(found.report.mechanism)
    return found


SEEN = {}


def rule(name, x, o_final, **options):
    o, final = o_final
    return dict(x, mechanism=name, o=o, final_state=final, **{f"opt.{key}": y for key, y in options.items()})


def l2(y, eps=1e-6):
    return y / np.sqrt((y * y).sum(-1, keepdims=True) + eps)


def length(y):
    return np.sqrt((y * y).sum(-1, keepdims=True))


def moved(y, by, end):
    """Along the tokens, axis 1."""
    z = np.roll(y, by, 1)
    where = slice(0, by) if by > 0 else slice(y.shape[1] + by, None)
    if end != "wrapped":
        z[:, where] = y[:, where] if end == "own" else end
    return z


# name: (mechanisms, what recurrence gets instead, what the dump says besides)
SCALES = {
    "scale missing": dict(scale=1.0), "scale twice": dict(scale=1 / 4), "scale inverted": dict(scale=2.0),
    "scale from the value width": dict(scale=3 ** -0.5),
    "scale from the width of all heads": dict(scale=8 ** -0.5)}
NORMS = {
    "l2 norm missing": (None, None), "l2 norm on q only": (l2, None), "l2 norm on k only": (None, l2),
    "RMS norm in place of the l2 norm": (lambda y: 2 * l2(y, 4e-6),) * 2,
    "eps outside the root": (lambda y: y / (length(y) + 1e-6),) * 2, "eps on the mean": (lambda y: l2(y, 4e-6),) * 2,
    "eps as a maximum": (lambda y: y / np.maximum(length(y), 1e-6),) * 2, "eps 1e-12": (lambda y: l2(y, 1e-12),) * 2,
    "scale before the norm": (lambda y: 2 * l2(y / 2), l2)}
FACTORS = {
    "gate ignored": lambda g: 0 * g + 1, "gate in base 2": lambda g: 2.0 ** g, "gate divided by ln 2": lambda g: np.exp(g / np.log(2)),
    "gate twice": lambda g: np.exp(g) ** 2,
    "minus exp of the gate": lambda g: np.exp(-np.exp(g)),
    "minus sigmoid of the gate, times exp(-1/2)": lambda g: np.exp(-np.exp(-0.5) / (1 + np.exp(-g))),
    "sigmoid of the gate": lambda g: 1 / (1 + np.exp(-g)),
    "minus softplus of the gate": lambda g: 1 / (1 + np.exp(g)),
    "gate as a factor": lambda g: g, "exp of the gate twice": lambda g: np.exp(np.exp(g)), "sign of the gate": lambda g: np.exp(-g),
    "gate linearised": lambda g: 1 + g}
BETAS = {
    "beta ignored": lambda b: 0 * b + 1, "sigmoid of beta again": lambda b: 1 / (1 + np.exp(-b)),
    "sigmoid of beta missing": lambda b: -np.log(1 / b - 1), "beta doubled": lambda b: 2 * b,
    "beta halved": lambda b: b / 2, "beta twice": lambda b: b * b}
ORDERS = {
    "predict before decay": ("gated_delta_rule kda", "predict decay write read"),
    "decay after write": ("simple_gla gla gated_delta_rule kda", "predict write decay read"),
    "decay after read": ("gla gated_delta_rule kda", "predict write read decay"),
    "read before write": ("linear_attention simple_gla delta_rule gated_delta_rule", "decay predict read write"),
    "read before decay": ("simple_gla kda", "read decay predict write"),
    "nothing erased": ("delta_rule gated_delta_rule kda", "decay write read")}


@pytest.mark.parametrize("name", ["gated_delta_rule", "gla", "linear_attention"])
@pytest.mark.parametrize("row", SCALES)
def test_scale(row, name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, x, **SCALES[row])), row)


@pytest.mark.parametrize("name", ["delta_rule", "simple_gla"])
def test_more_scales(name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, x), scale=0.3), "given scale ignored")
    named(rule(name, x, recurrence(name, dict(x, k=x["k"] / 2))), "scale on k as well")


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
@pytest.mark.parametrize("row", NORMS)
def test_norms(row, name):
    x = inputs(name, short=0.02 if "eps" in row or "scale" in row else 1)
    unit = [one or (lambda y: y) for one in NORMS[row]]
    named(rule(name, x, recurrence(name, x, unit=unit), use_qk_l2norm=True), row)


@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
def test_superfluous_norms(name):
    x = inputs(name)
    plain = lambda y: y
    for row, unit in {"l2 norm superfluous": (l2, l2), "l2 norm of q superfluous": (l2, plain),
                      "l2 norm of k superfluous": (plain, l2)}.items():
        named(rule(name, x, recurrence(name, x, unit=unit)), row)


@pytest.mark.parametrize("name", ["gated_delta_rule", "gla"])
def test_roles(name):
    x = inputs(name, H=2, G=1, V=4)
    for row, other in {"q and k swapped": dict(q="k", k="q"), "k and v swapped": dict(k="v", v="k"), "q and v swapped": dict(q="v", v="q"),
                       "read with k": dict(q="k")}.items():
        named(rule(name, x, recurrence(name, x | {new: x[old] for new, old in other.items()})), row)


def test_feature_map():
    elu = lambda y: np.where(y > 0, y + 1, np.exp(np.minimum(y, 0)))
    x = inputs("linear_attention")
    named(rule("linear_attention", x, recurrence("linear_attention", dict(x, q=elu(x["q"]), k=elu(x["k"])))), "feature map elu + 1 applied")
    x = inputs("normalized_linear_attention")
    named(normal_dump(x, dict(x, q=elu(x["q"]), k=elu(x["k"]))), "feature map elu + 1 applied")


@pytest.mark.parametrize("name", ["gated_delta_rule", "gla"])
@pytest.mark.parametrize("row", FACTORS)
def test_gates(row, name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, x, factor=FACTORS[row])), row)


@pytest.mark.parametrize("which, by", [("previous", 1), ("next", -1)])
@pytest.mark.parametrize("name, array", [("gated_delta_rule", "g"), ("gla", "g"), ("gated_delta_rule", "beta"), ("delta_rule", "beta")])
def test_neighbours(name, array, which, by):
    end = dict(previous="first", next="last")[which]
    ends = {"": 0 if array == "g" else 1, f" (the {end} keeps its own)": "own", f" (the {end} gets that of the other end)": "wrapped"}
    x, what = inputs(name), dict(g="gate", beta="beta")[array]
    for more, value in ends.items():
        named(rule(name, x, recurrence(name, x | {array: moved(x[array], by, value)})), f"{what} of the {which} token{more}")


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])
def test_whose_gate(name):
    x = inputs(name, H=2, G=3)
    for array, row in dict(g="gate of the first head of the group", beta="beta of the first head of the group").items():
        named(rule(name, x, recurrence(name, x | {array: x[array][:, :, [0, 0, 0, 3, 3, 3]]})), row)


@pytest.mark.parametrize("name", ["gla", "kda"])
def test_gate_across_values(name):
    x = inputs(name, V=4)
    named(rule(name, x, recurrence(name, x, columns=True)), "gate across value channels")


@pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule"])
@pytest.mark.parametrize("row", BETAS)
def test_strengths(row, name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, dict(x, beta=BETAS[row](x["beta"])))), row)


@pytest.mark.parametrize("name", DELTA)
def test_where_beta_goes(name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, x, erased=False)), "beta only on v")
    named(rule(name, x, recurrence(name, x, written=False)), "beta only on k")
    named(rule(name, x, recurrence(name, x, erased=lambda b: b * b)), "beta on k, everywhere")


@pytest.mark.parametrize("row, name", [(row, name) for row, (names, _) in ORDERS.items() for name in names.split()])
def test_orders(row, name):
    x = inputs(name)
    named(rule(name, x, recurrence(name, x, order=ORDERS[row][1])), row)


def test_linear_attention_without_its_mask():
    x = inputs("linear_attention")
    _, final = recurrence("linear_attention", x)
    o = np.einsum("bthk,bhkv->bthv", np.repeat(x["q"], 2, 2), final) / 2
    named(rule("linear_attention", x, (o, final)), "causal mask missing in linear attention")


def test_orders_of_the_others():
    x = inputs("gated_delta_rule")
    named(rule("gated_delta_rule_predict_first", x, recurrence("gated_delta_rule", x)), "decay before predict")
    x = inputs("normalized_linear_attention")
    whole = np.einsum("bthk,bhkv->bthv", np.repeat(x["q"], 2, 2), (made := normalised(x))[1]) / np.einsum("bthk,bhk->bth",
                                                                                                          np.repeat(x["q"], 2, 2),
                                                                                                          made[2])[..., None]
    named(dict(x, mechanism="normalized_linear_attention", o=whole, **{"final_state.S": made[1], "final_state.z": made[2]}),
          "causal mask missing in linear attention")
    o, S, z = normalised(x, strict=True)
    named(dict(x, mechanism="normalized_linear_attention", o=o, **{"final_state.S": S, "final_state.z": z}), "read before write")


# --- states ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
def test_states(name):
    x = inputs(name, V=4)
    o, final = recurrence(name, x)
    turned = dict(x, state=x["state"].swapaxes(2, 3))
    p, last = recurrence(name, turned)
    named(rule(name, x, recurrence(name, {key: y for key, y in x.items() if key != "state"})), "initial state ignored")
    named(rule(name, x, (p, last)), "initial state transposed")
    named(rule(name, x, (o, final.swapaxes(2, 3))), "final state transposed")
    named(rule(name, x, (p, last.swapaxes(2, 3))), "state [V, K]")
    named(rule(name, x, (o, 0 * final)), "final state missing")
    named(rule(name, x, (o, x["state"])), "initial state returned")
    early = recurrence(name, {key: y if key == "state" else y[:, :-1] for key, y in x.items()})[1]
    named(rule(name, x, (o, early)), "final state one token early")


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda", "simple_gla"])
def test_last_gate(name):
    x = inputs(name)
    o, final = recurrence(name, x)
    before = recurrence(name, {key: y if key == "state" else y[:, :-1] for key, y in x.items()})[1]
    a = np.exp(x["g"][:, -1]).reshape(1, 4, -1, 1)
    named(rule(name, x, (o, final - a * before + before)), "final state without the last gate")
    named(rule(name, x, (o, a * final)), "final state decayed once more")
    named(rule(name, x, (o, final / a)), "final state divided by the last gate")


# --- heads and axes ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention", "softmax_attention"])
def test_heads(name):
    for row, key_head in {"key heads tiled": lambda h, H, G: h % H, "first key head for all": lambda h, H, G: 0}.items():
        if name == "softmax_attention":
            x = softmax_inputs(G=3)
            named(dict(x, mechanism=name, o=attention(x, key_head=key_head)), row)
        else:
            x = inputs(name, G=3)
            named(rule(name, x, recurrence(name, x, key_head=key_head)), row)


@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_axes(name, layout):
    x = inputs(name, T=6, H=4, G=1, state=False)
    swap = lambda x: {key: y.swapaxes(1, 2) for key, y in x.items()}
    o, _ = recurrence(name, swap(x))                     # heads for tokens
    stored = swap if layout == "bhtd" else lambda x: x
    named(dict(stored(dict(x, o=o.swapaxes(1, 2))), mechanism=name, layout=layout), "head and time axes swapped")
    x = stored(x)
    other = lambda y: y.reshape(y.shape[:1] + (y.shape[2], y.shape[1]) + y.shape[3:])         # the other layout's axes on the same numbers
    seen = {key: other(y) for key, y in x.items()}
    o = recurrence(name, seen if layout == "bhtd" else swap(seen))[0]
    o = o.reshape(x["v"].shape) if layout == "bhtd" else o.swapaxes(1, 2).reshape(x["v"].shape)
    named(dict(x, o=o, mechanism=name, layout=layout), "head and time axes viewed, not swapped")


# --- chunks ------------------------------------------------------------------------------------------------------

def chunk_dump(name, wrong, C, T=140, **more):
    x = inputs(name, T=T, H=1, G=2, **more)
    return rule(name, x, recurrence(name, x, one=in_chunks(C, wrong)))


FORMULAS = {"state not decayed across chunks of {}": ("carry", "simple_gla gated_delta_rule"),
            "writes not decayed to the end of chunks of {}": ("end", "gla gated_delta_rule"),
            "plain causal mask inside chunks of {}": ("mask", "simple_gla gated_delta_rule"),
            "chunk's first state not decayed, chunks of {}": ("first", "simple_gla kda"),
            "prediction decayed twice, chunks of {}": ("twice", "gated_delta_rule kda"),
            "sign of the triangular system, chunks of {}": ("sign", "delta_rule gated_delta_rule"),
            "decay read beyond a short last chunk of {}": ("padded", "simple_gla gated_delta_rule")}


@pytest.mark.parametrize("C", [16, 32, 64, 128])
@pytest.mark.parametrize("row, name", [(row, name) for row, (_, names) in FORMULAS.items() for name in names.split()])
def test_chunk_formula(row, name, C):
    named(chunk_dump(name, FORMULAS[row][0], C), row.format(C))


@pytest.mark.parametrize("C", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
def test_chunk_borders(name, C):
    x = inputs(name, T=140, H=1, G=2)
    o, final = recurrence(name, x)
    named(rule(name, x, recurrence(name, x, before=lambda t, S: 0 * S if t and t % C == 0 else S)),
          f"state not carried across chunks of {C}")
    last = 140 // C * C
    named(rule(name, x, recurrence(name, x, before=lambda t, S: 0 * S if t == last else S)), f"no state into a short last chunk of {C}")
    early = recurrence(name, {key: y if key == "state" else y[:, :last] for key, y in x.items()})[1]
    named(rule(name, x, (o, early)), f"short last chunk of {C} not in the final state")
    silent = np.where(np.arange(140)[:, None, None] < last, o, 0)
    named(rule(name, x, (silent, early)), f"short last chunk of {C} dropped")
    named(rule(name, x, (silent, final)), f"outputs of a short last chunk of {C} missing")


@pytest.mark.parametrize("C", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["gated_delta_rule", "gla"])
def test_gates_cumulated_twice(name, C):
    x = inputs(name, T=140, H=1, G=2)
    g = np.concatenate([np.cumsum(x["g"][:, s:s + C], 1) for s in range(0, 140, C)], 1)
    named(rule(name, x, recurrence(name, dict(x, g=g))), f"gates cumulated twice, chunks of {C}")
    g = x["g"].copy()
    g[:, C::C] = 0
    named(rule(name, x, recurrence(name, dict(x, g=g))), f"first gate of each chunk of {C} ignored")
    o, final = recurrence(name, x)
    more = np.exp(x["g"][:, -1] * (-140 % C)).reshape(1, 2, -1, 1)
    named(rule(name, x, (o, more * final)), f"short last chunk of {C} filled with its last gate")


# --- padding and packing -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gated_delta_rule", "simple_gla"])
def test_padding(name):
    x, mask = inputs(name), np.ones((1, 20))
    mask[0, [0, 1, 7, 18, 19]] = 0
    zero = lambda y: np.where(mask.reshape((1, 20) + (1,) * (y.ndim - 2)) > 0, y, 0)
    for row, names in {"padding leaks": (), "padding decays": ("k", "v", "beta"), "padding writes": ("g",)}.items():
        named(rule(name, x, recurrence(name, x | {key: zero(x[key]) for key in names if key in x})) | dict(mask=mask), row)


@pytest.mark.parametrize("name", ["linear_attention", "softmax_attention"])
def test_padding_without_gates(name):
    mask = np.ones((1, 20))
    mask[0, [2, 3, 9]] = 0
    if name == "softmax_attention":
        x = softmax_inputs()
        named(dict(x, mechanism=name, mask=mask, o=attention(x)), "padding leaks")
    else:
        x = inputs(name)
        named(rule(name, x, recurrence(name, x)) | dict(mask=mask), "padding leaks")


@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
def test_packing(name):
    cu, x = np.array([0, 7, 7, 15, 20]), inputs(name)
    first = x.pop("state")
    states = np.concatenate([first] + [inputs(name, seed=n)["state"] for n in (1, 2, 3)])
    o, S, finals = [], first, []
    for a, b in zip(cu, cu[1:]):                         # the state runs on
        part = {key: y[:, a:b] for key, y in x.items()}
        out, S = recurrence(name, dict(part, state=S))
        o.append(out)
        finals.append(S)
    dump = dict(x, mechanism=name, state=states, cu_seqlens=cu)
    named(dump | dict(o=np.concatenate(o, 1), final_state=np.concatenate(finals)), "packed sequences leak")
    parts = [recurrence(name, {key: y[:, a:b] for key, y in x.items()} | dict(state=states[n:n + 1]))
             for n, (a, b) in enumerate(zip(cu, cu[1:]))]
    dump |= dict(o=np.concatenate([o for o, _ in parts], 1))
    finals = np.concatenate([S for _, S in parts])
    assert diagnose(dump | dict(final_state=finals)).verdict == "right"
    for row, value in {"empty sequence's state zero": 0, "empty sequence's state from its neighbour": finals[0]}.items():
        lost = finals.copy()
        lost[1] = value
        named(dump | dict(final_state=lost), row)


def test_packing_of_attention():
    x, cu = softmax_inputs(), np.array([0, 7, 20])
    named(dict(x, mechanism="softmax_attention", cu_seqlens=cu, o=attention(x)), "packed sequences leak")


# --- softmax and block top-k ---------------------------------------------------------------------------------------

def softmax_dump(x, o, **options):
    return dict(x, mechanism="softmax_attention", o=o, **{f"opt.{key}": y for key, y in options.items()})


@pytest.mark.parametrize("row", SCALES)
def test_scale_of_attention(row):
    x = softmax_inputs()
    scale = SCALES[row]["scale"] if "heads" not in row else 16 ** -0.5
    named(softmax_dump(x, attention(x, scale=scale)), row)
    named(dict(softmax_dump(x, attention(x, scale=np.log(2) / 2)), layout="bthd"), "softmax in base 2")
    named(softmax_dump(x, attention(x), scale=0.3), "given scale ignored")


ATTENTION = {
    "causal mask strict": (lambda i, j: j < i, {}), "causal mask missing": (lambda i, j: True, {}),
    "causal mask one too late": (lambda i, j: j <= i + 1, {}),
    "causal mask superfluous": (lambda i, j: j <= i, dict(causal=False)),
    "window one too wide": (lambda i, j: i - 6 < j <= i, dict(window=5)),
    "window one too narrow": (lambda i, j: i - 4 < j <= i, dict(window=5)), "window ignored": (lambda i, j: j <= i, dict(window=5))}


@pytest.mark.parametrize("row", ATTENTION)
def test_who_sees_whom(row):
    see, options = ATTENTION[row]
    x = softmax_inputs()
    named(softmax_dump(x, attention(x, see), **options), row)


def test_positions():
    x = softmax_inputs(n=4)
    named(softmax_dump(x, attention(x, lambda i, j: j <= i)), "positions without the cache")
    new = {key: y for key, y in x.items() if "state" not in key}
    named(softmax_dump(x, attention(new)), "cache ignored")
    x = softmax_inputs(T=8, N=20)
    named(softmax_dump(x, attention(x, lambda i, j: j <= i + 12)), "causal mask aligned to the last key")


def test_masks_and_bias():
    x, rng = softmax_inputs(), np.random.default_rng(5)
    mask, bias = rng.random((20, 20)) > 0.4, rng.standard_normal((4, 20, 20))
    mask[3], mask[range(20), range(20)] = False, True    # query 3 sees itself, or with j < i nothing
    mask[3, 3] = False
    given = {"opt.mask": mask}
    named(softmax_dump(x, attention(x)) | given, "mask ignored")
    named(softmax_dump(x, attention(x, lambda i, j: j <= i and not mask[i, j])) | given, "mask inverted")
    low = np.where(mask & np.tri(20, dtype=bool), 0, -1e9)[None].repeat(4, 0)
    named(softmax_dump(x, attention(x, lambda i, j: True, bias=low)) | given, "-1e9 in place of -inf")
    given = {"opt.bias": bias}
    for row, other in {"bias ignored": 0 * bias, "bias scaled": bias / 2, "bias negated": -bias}.items():
        named(softmax_dump(x, attention(x, bias=other)) | given, row)


def test_weights():
    x = softmax_inputs()
    for row, weights in {"softmax not normalised": lambda w, m: w * np.exp(m),
                         "softmax not normalised, largest score taken off": lambda w, m: w,
                         "one more in the normaliser": lambda w, m: w / (w.sum() + np.exp(-m)),
                         "one more in the normaliser, largest score taken off": lambda w, m: w / (w.sum() + 1)}.items():
        named(softmax_dump(x, attention(x, weights=weights)), row)


def blocks(x, size, rule, last=None):
    """For attention: which keys query i of head h keeps; rule(scores of all blocks, own block) gives the numbers of the kept ones."""
    k, T, G = x["k"], x["k"].shape[1], x["q"].shape[2] // x["k"].shape[2]
    parts = [range(s, min(s + size, T)) for s in range(0, T, size)]
    kept = {}
    for i, h in np.ndindex(x["q"].shape[1], x["q"].shape[2]):
        c = [x["q"][0, i, h] @ k[0, list(p), h // G].sum(0) / (last or len(p)) for p in parts]
        kept[i, h] = rule(c, i // size)
    return lambda b, i, h, j: j // size in kept[i, h]


def best(c, allowed, n):
    return sorted(allowed, key=lambda b: (-c[b], b))[:max(n, 0)]


def moba(n):
    return lambda c, own: [own, *best(c, range(own), n - 1)]


CHOICES = {
    "one block too many": moba(4), "one block too few": moba(2), "own block not forced": lambda c, own: best(c, range(own + 1), 3),
    "own block left out": lambda c, own: best(c, range(own), 3),
    "future blocks chosen": lambda c, own: [own, *best(c, [b for b in range(len(c)) if b != own], 2)],
    "chosen blocks one too early": lambda c, own: [own, *(b - 1 for b in best(c, range(own), 2) if b)],
    "chosen blocks one too late": lambda c, own: [own, *(b + 1 for b in best(c, range(own), 2))]}


@pytest.mark.parametrize("row", [*CHOICES, "own block without causal mask", "causal mask missing", "ragged block's mean over padding",
                                 "scale missing", "softmax in base 2", "cache ignored"])
def test_block_topk(row):
    x = softmax_inputs(T=22, n=3 if row == "cache ignored" else 0)
    dump = {"mechanism": "block_topk_attention", "opt.block_size": 4, "opt.topk": 3, "opt.causal": True}
    see, choice, last, scale = lambda i, j: j <= i, CHOICES.get(row, moba(3)), None, None
    if row == "own block without causal mask":
        see = lambda i, j: True
    if row == "causal mask missing":
        see, choice = lambda i, j: True, lambda c, own: best(c, range(len(c)), 3)
    if row == "ragged block's mean over padding":
        see, choice, last, dump["opt.causal"] = lambda i, j: True, lambda c, own: best(c, range(len(c)), 3), 4, False
    if row in ("scale missing", "softmax in base 2"):
        scale = 1.0 if row == "scale missing" else np.log(2) / 2
    new = {key: y for key, y in x.items() if "state" not in key}
    named(dict(x, **dump, o=attention(new, see, kept=blocks(x, 4, choice, last), scale=scale)), row)


def normal_dump(x, other, **how):
    o, S, z = normalised(other, **how)
    return dict(x, mechanism="normalized_linear_attention", o=o, **{"final_state.S": S, "final_state.z": z})


def test_normaliser():
    x = inputs("normalized_linear_attention")
    named(normal_dump(x, x, divide=lambda n: 1), "normaliser missing")
    named(normal_dump(x, x, z_first=False), "initial sum of keys ignored")
    named(normal_dump(x, x, before=lambda t: t == 16), "state not carried across chunks of 16")
    named(dict(normal_dump(x, x), o=normalised(x)[0] / 2), "scale in the numerator only")
    x = inputs("normalized_linear_attention", state=False)
    x |= dict(q=x["q"] / 10, k=x["k"] / 10)
    named(normal_dump(x, x, divide=lambda n: max(abs(n), 1)), "normaliser at least 1")
    named(normal_dump(x, x, divide=lambda n: n + 1e-6), "eps 1e-6 in the normaliser")


# --- gradients ---------------------------------------------------------------------------------------------------

def backwards(name, x, do, dS, forget="", sums=lambda d: d.sum(0)):
    """Gradients by the adjoint recurrence; `sums` makes one of the gradients of the heads that share a key head.  Also what dg
    would be without its parts.
    """
    (B, T, HV, V), H, K = x["v"].shape, x["q"].shape[2], x["q"].shape[3]
    d = {key: np.zeros((B, HV, T) + y.shape[3:]) for key, y in x.items() if key != "state"} | dict(state=np.zeros((B, HV, K, V)))
    for b, h in np.ndindex(B, HV):
        j = h // (HV // H)
        q, k, v = x["q"][b, :, j] * K ** -0.5, x["k"][b, :, j], x["v"][b, :, h]
        a = np.exp(x["g"][b, :, h].reshape(T, -1)) * np.ones((1, K)) if "g" in x else np.ones((T, K))
        beta = x["beta"][b, :, h] if "beta" in x else np.ones(T)
        S, kept = x["state"][b, h], []
        for t in range(T):
            F = a[t][:, None] * S
            e = v[t] - F.T @ k[t] if "beta" in x else v[t]
            S = F + np.outer(k[t], beta[t] * e)
            kept.append((F, e, S))
        R = dS[b, h].copy()
        for t in reversed(range(T)):
            F, e, S = kept[t]
            d["q"][b, h, t] = K ** -0.5 * (S @ do[b, t, h])
            R = R + np.outer(q[t], do[b, t, h])
            du = R.T @ k[t]
            d["v"][b, h, t] = beta[t] * du
            d["k"][b, h, t] = R @ (beta[t] * e)
            if "beta" in x:
                d["beta"][b, h, t] = du @ (v[t] if forget == "prediction in dbeta" else e)
                if forget != "prediction in dk":
                    d["k"][b, h, t] -= F @ (beta[t] * du)
                if forget != "prediction in dS":
                    R = R - np.outer(k[t], beta[t] * du)
            if "g" in x:
                d["g"][b, h, t] = (R * F).sum() if GATES[name] == 1 else (R * F).sum(1)
            R = a[t][:, None] * R
        d["state"][b, h] = R
    for key in "qk":
        d[key] = np.stack([[sums(d[key][b, j * (HV // H):(j + 1) * (HV // H)]) for j in range(H)] for b in range(B)])
    return {"d" + key: y if key == "state" else y.swapaxes(1, 2) for key, y in d.items()}


def gradient_dump(name, forget="", T=20, ends=None, H=2, **how):
    """A dump whose outputs are right."""
    x, rng = inputs(name, T=T, H=H), np.random.default_rng(9)
    do, dS = rng.standard_normal(x["v"].shape), rng.standard_normal(x["state"].shape)
    gradients = backwards(name, x, do, dS if ends is None else ends * dS, forget, **how)
    return rule(name, x, recurrence(name, x)) | dict(do=do, dfinal_state=dS, **gradients)


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda", "simple_gla", "gla", "delta_rule", "linear_attention"])
def test_right_gradients(name):
    assert diagnose(gradient_dump(name)).verdict == "right"


def through_end(dump):
    """sum(final state, its gradient), by head, and by channel where gates are."""
    return (dump["final_state"] * dump["dfinal_state"]).sum((2, 3) if dump["g"].ndim == 3 else 3)[:, None]


@pytest.mark.parametrize("name", ["gated_delta_rule", "gla"])
def test_gradient_of_the_gate(name):
    dump = gradient_dump(name)
    named(dump | dict(dg=dump["dg"] - through_end(dump)), "final state's part missing in dg")
    named(dump | dict(dg=np.concatenate([dump["dg"][:, 1:], through_end(dump)], 1)), "dg of the next token")
    named(dump | dict(dg=dump["dg"] / np.exp(dump["g"])), "dg with respect to the factor")


@pytest.mark.parametrize("C", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["gated_delta_rule", "gla"])
def test_chunks_of_the_gate_gradient(name, C):
    """dg is a reversed cumulative sum of what each token adds, begun with the final state's part."""
    dump = gradient_dump(name, T=140, H=1)
    end, T = through_end(dump), 140
    adds = dump["dg"] - np.concatenate([dump["dg"][:, 1:], end], 1)
    anew = lambda s, first: np.cumsum(adds[:, s:s + C][:, ::-1], 1)[:, ::-1] + first
    for more, last in (("", end), (" and without the final state", 0 * end)):
        dg = np.concatenate([anew(s, last if s + C >= T else 0 * end) for s in range(0, T, C)], 1)
        named(dump | dict(dg=dg), f"dg without carry across chunks of {C}{more}")
    dg = dump["dg"].copy()
    dg[:, T // C * C:] -= end
    named(dump | dict(dg=dg), f"dg without the end of a short last chunk of {C}")


@pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule"])
def test_gradient_of_the_delta_rule(name):
    for row, forget in {"prediction missing in dbeta": "prediction in dbeta", "dk without the prediction": "prediction in dk",
                        "state's gradient past the prediction": "prediction in dS"}.items():
        named(gradient_dump(name, forget), row)


@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention", "kda"])
def test_other_gradients(name):
    for row, sums in {"the first": lambda d: d[0], "the last": lambda d: d[-1], "the mean": lambda d: d.mean(0)}.items():
        named(gradient_dump(name, sums=sums), f"sum over grouped heads missing: {row}")
    named(gradient_dump(name, ends=0), "dfinal_state ignored")
    dump = gradient_dump(name)
    only = backwards(name, {key: dump[key] for key in inputs(name)}, 0 * dump["do"], dump["dfinal_state"])
    named(dump | only, "do ignored")
    named(dump | {"d" + key: -3 * dump["d" + key] for key in inputs(name)}, "all gradients off by a factor")
    for key in inputs(name):
        found = named(dump | {"d" + key: dump["d" + key] * 2.5}, f"d{key} off by a factor")
        assert found.explanations[0].errors["d" + key] < 1e-12


def complex_step(f, x, names, cotangents):
    """Gradients of sum(f(x) cotangents), one number at a time."""
    found = {}
    for name in names:
        d = np.zeros(x[name].shape)
        for i in np.ndindex(d.shape):
            y = {key: z.astype(complex) for key, z in x.items()}
            y[name][i] += 1e-30j
            d[i] = sum((out * c).sum() for out, c in zip(f(y), cotangents)).imag / 1e-30
        found["d" + name] = d
    return found


@pytest.mark.parametrize("name", ["linear_attention", "delta_rule"])
def test_gradient_of_the_norm(name):
    """Outputs of normalised q and k; gradients of these, or with another eps on the way back."""
    x = inputs(name, T=5, H=1, short=0.02)
    unit = dict(x, q=l2(x["q"]), k=l2(x["k"]))
    rng = np.random.default_rng(3)
    o, final = recurrence(name, unit)
    do, dS = rng.standard_normal(o.shape), rng.standard_normal(final.shape)
    d = backwards(name, unit, do, dS)
    dump = rule(name, x, (o, final), use_qk_l2norm=True) | dict(do=do, dfinal_state=dS, **d)
    named(dump, "norm's gradient missing")

    def past(key, eps):
        r = np.sqrt((x[key] ** 2).sum(-1, keepdims=True) + eps)
        return (d["d" + key] - x[key] / r * (x[key] / r * d["d" + key]).sum(-1, keepdims=True)) / r
    assert diagnose(dump | dict(dq=past("q", 1e-6), dk=past("k", 1e-6))).verdict == "right"
    named(dump | dict(dq=past("q", 1e-12), dk=past("k", 1e-12)), "eps 1e-12 in the norm's gradient")


def test_gradient_of_the_normaliser():
    """o = x / n: dk of x alone is that of linear attention for do / n."""
    x = inputs("normalized_linear_attention", T=6, H=1, G=1)
    rng = np.random.default_rng(4)
    o, S, z = normalised(x)
    do = rng.standard_normal(o.shape)
    K = x["k"].shape[3]

    def whole(y):
        S, z, out = y["state.S"][0, 0], y["state.z"][0, 0], []
        for t in range(6):
            S, z = S + np.outer(y["k"][0, t, 0], y["v"][0, t, 0]), z + y["k"][0, t, 0]
            out.append(y["q"][0, t, 0] @ S / (y["q"][0, t, 0] @ z))
        return [np.array(out)[None, :, None]]

    d = complex_step(whole, x, list(x), [do])
    dump = dict(x, mechanism="normalized_linear_attention", o=o, do=do, **{"final_state.S": S, "final_state.z": z}, **d)
    assert diagnose(dump).verdict == "right"
    n = np.array([x["q"][0, t, 0] @ (x["state.z"][0, 0] + x["k"][0, :t + 1, 0].sum(0)) for t in range(6)])
    R, dk = np.zeros((K, 3)), np.zeros((1, 6, 1, K))
    for t in reversed(range(6)):
        R = R + np.outer(x["q"][0, t, 0], do[0, t, 0] / n[t])
        dk[0, t, 0] = R @ x["v"][0, t, 0]
    named(dump | dict(dk=dk), "dk without the normaliser")


@pytest.mark.parametrize("shape", [(20, 20), (4, 20, 20)])
def test_gradients_of_attention(shape):
    """Of softmax attention, by its formula; the gradient of the bias off by a factor, the sum over grouped heads missing."""
    x, rng = softmax_inputs(), np.random.default_rng(6)
    bias, do = rng.standard_normal(shape), rng.standard_normal((1, 20, 4, 3))
    full = np.broadcast_to(bias, (4, 20, 20))
    dq, dk, dv, ds = np.zeros((20, 4, 4)), np.zeros((20, 4, 4)), np.zeros((20, 4, 3)), np.zeros((4, 20, 20))
    for h, i in np.ndindex(4, 20):
        q, k, v = x["q"][0, i, h], x["k"][0, :i + 1, h // 2], x["v"][0, :i + 1, h // 2]
        p = np.exp(k @ q / 2 + full[h, i, :i + 1])
        p = p / p.sum()
        dp = v @ do[0, i, h]
        s = ds[h, i, :i + 1] = p * (dp - p @ dp)
        dq[i, h] = s @ k / 2
        dk[:i + 1, h] += np.outer(s, q) / 2
        dv[:i + 1, h] += np.outer(p, do[0, i, h])
    group = lambda y, sums: sums(y.reshape(20, 2, 2, -1))[None]
    dump = softmax_dump(x, attention(x, bias=full)) | {"opt.bias": bias, "do": do, "dq": dq[None],
                                                       "dbias": ds.sum(0) if bias.ndim == 2 else ds}
    whole = lambda sums: dict(dump, dk=group(dk, sums), dv=group(dv, sums))
    assert diagnose(whole(lambda y: y.sum(2))).verdict == "right"
    named(whole(lambda y: y.sum(2)) | dict(dbias=2 * dump["dbias"]), "dbias off by a factor")
    for row, sums in {"the first": lambda y: y[:, :, 0], "the last": lambda y: y[:, :, 1], "the mean": lambda y: y.mean(2)}.items():
        named(whole(sums), f"sum over grouped heads missing: {row}")


@pytest.mark.parametrize("name", ["softmax_attention", "block_topk_attention"])
def test_gradients_of_the_last_query(name):
    x, do = softmax_inputs(), np.random.default_rng(6).standard_normal((1, 20, 4, 3))
    kept = (lambda b, i, h, j: True) if name == "softmax_attention" else blocks(x, 4, moba(2))
    d = {key: np.zeros_like(x[key]) for key in "qkv"}
    lost = {key: np.zeros((20, 4, x[key].shape[3])) for key in "kv"}         # by query head
    for i, h in np.ndindex(20, 4):
        js = [j for j in range(i + 1) if kept(0, i, h, j)]
        q, k, v = x["q"][0, i, h], x["k"][0, js, h // 2], x["v"][0, js, h // 2]
        p = np.exp(k @ q / 2) / np.exp(k @ q / 2).sum()
        ds = p * (v @ do[0, i, h] - p @ (v @ do[0, i, h]))
        d["q"][0, i, h] = ds @ k / 2
        d["k"][0, js, h // 2] += np.outer(ds, q) / 2
        d["v"][0, js, h // 2] += np.outer(p, do[0, i, h])
        lost["k"][js, h], lost["v"][js, h] = np.outer(ds, q) / 2, np.outer(p, do[0, i, h])
    options = {} if name == "softmax_attention" else {"opt.block_size": 4, "opt.topk": 2, "opt.causal": True}
    dump = dict(x, mechanism=name, o=attention(x, kept=kept), do=do, dq=d["q"], dk=d["k"], dv=d["v"], **options)
    assert diagnose(dump).verdict == "right"
    group = lambda y: y.reshape(20, 2, 2, -1).sum(2)[None]
    named(dump | dict(dk=group(lost["k"]), dv=group(lost["v"])), "keys get the gradient of the last query only")


# --- all of them --------------------------------------------------------------------------------------------------

def test_every_row_was_recognised(request):
    """Runs last: each row by at least two mechanisms, where it concerns two."""
    if len(SEEN) < len(ROWS) // 2:
        pytest.fail("run the whole file: this test counts what the others have seen")
    few = {row: seen for row in ROWS if len(seen := SEEN.get(row, set())) < min(2,
        sum(ROWS[row].concerns(mechanism) for mechanism in CATALOGUE.values()))}
    assert not few
