"""compare, against dumps made by plain loops over numbers that share nothing with the package."""
import functools
import io
import json
import pickle
import re
import zipfile

import numpy as np
import pytest

from npattn import data
from npattn.catalogue import CATALOGUE
from npattn.compare import DumpError, Report, check_dump, diagnose
from npattn.compare.command import compare_command
from npattn.compare.frameworks import framework_error
from npattn.compare.read import ALIASES
from npattn.delta import gated_delta_rule as module

SIZES = dict(B=2, T=9, H=2, HV=4, K=3, V=5)


# --- plain loops -------------------------------------------------------------------------------------------------

def delta_head(q, k, v, g, beta, S, scale, l2):
    """One head: (T, K), (T, K), (T, V), (T), (T), (K, V)."""
    o = []
    for t in range(len(q)):
        qt, kt = q[t], k[t]
        if l2:
            qt, kt = qt / np.sqrt((qt * qt).sum() + 1e-6), kt / np.sqrt((kt * kt).sum() + 1e-6)
        S = np.exp(g[t]) * S
        S = S + np.outer(kt, beta[t] * (v[t] - kt @ S))
        o.append(scale * (qt @ S))
    return np.array(o).reshape(len(q), v.shape[1]), S


def delta(x, scale=None, l2=False):
    """(o, final_state) of arrays in layout bthd."""
    B, T, HV, V = x["v"].shape
    K, G = x["q"].shape[3], HV // x["q"].shape[2]
    state = x.get("state", np.zeros((B, HV, K, V)))
    o, final = np.zeros((B, T, HV, V), x["q"].dtype), np.zeros((B, HV, K, V), x["q"].dtype)
    for b in range(B):
        for h in range(HV):
            o[b, :, h], final[b, h] = delta_head(x["q"][b, :, h // G], x["k"][b, :, h // G], x["v"][b, :, h], x["g"][b, :, h], x["beta"][b, :, h],
                                                 state[b, h], K ** -0.5 if scale is None else scale, l2)
    return o, final


def inputs(seed=0, **sizes):
    rng, (B, T, H, HV, K, V) = np.random.default_rng(seed), {**SIZES, **sizes}.values()
    normal = rng.standard_normal
    k = normal((B, T, H, K))
    return dict(q=normal((B, T, H, K)), k=k / np.sqrt((k * k).sum(-1, keepdims=True)), v=normal((B, T, HV, V)), g=-np.abs(normal((B, T, HV))),
                beta=rng.uniform(0, 1, (B, T, HV)), state=normal((B, HV, K, V)))


def right(seed=0, l2=False, scale=None, **sizes):
    """A dump that is right."""
    x = inputs(seed, **sizes)
    o, final = delta(x, scale, l2)
    return dict(x, mechanism="gated_delta_rule", o=o, final_state=final, **{"opt.use_qk_l2norm": l2}, **({} if scale is None else {"opt.scale": scale}))


def row(report, name):
    return next(row for row in report.rows if row.name == name)


# --- right and wrong ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("change", [{}, dict(l2=True), dict(scale=0.3), dict(H=1, HV=3), dict(H=4), dict(T=1, B=1, H=1, HV=1), dict(T=0), dict(T=130, B=1)],
                         ids=str)
def test_right(change):
    report = check_dump(right(**change))
    assert isinstance(report, Report) and report.right and report.precision == "float64"
    assert all(row.error.relative < 1e-13 for row in report.rows) and {row.name for row in report.rows} == {"o", "final_state"}
    assert str(report).endswith("RIGHT") and "WRONG" not in str(report)


def test_layouts():
    dump = right()
    first = {key: x if key == "mechanism" or x is False or "state" in key else x.swapaxes(1, 2) for key, x in dump.items()}
    assert check_dump(dict(first, layout="bhtd")).right and check_dump(first, layout="bhtd").right
    assert check_dump(dict(first, layout="bthd"), layout="bhtd").right       # what is given goes before what is stored
    with pytest.raises(DumpError, match="all arrays fit layout bhtd"):
        check_dump(first)


def test_mechanism_is_given_or_stored():
    dump = right()
    assert not check_dump(dump, "gated_delta_rule_predict_first").right      # goes before the stored one
    del dump["mechanism"]
    assert check_dump(dump, mechanism="gated_delta_rule").right
    with pytest.raises(DumpError, match="its arrays fit gated_delta_rule, gated_delta_rule_predict_first$"):
        check_dump(dump)


@pytest.mark.parametrize("change", [
    dict(o=lambda d: d["o"] * 2), dict(final_state=lambda d: d["final_state"] * (1 + 1e-7)), {"opt.scale": lambda d: 1.}, {"opt.use_qk_l2norm": lambda d: True},
    dict(state=lambda d: None), dict(g=lambda d: np.roll(d["g"], 1, 1)), dict(beta=lambda d: d["beta"] / 2),
    dict(q=lambda d: d["q"][:, :, ::-1]), dict(final_state=lambda d: np.zeros_like(d["final_state"]))])
def test_wrong(change):
    dump = right()
    report = check_dump(dump | {key: f(dump) for key, f in change.items()})
    assert not report.right and str(report).splitlines()[-1].startswith("WRONG: ")


def test_other_types_are_computed_in_float64():
    """Inputs of float16 are what they are: outputs of those very inputs in float64 agree to float64."""
    x = {key: y.astype(np.float16) for key, y in inputs().items()}
    o, final = delta({key: y.astype(np.float64) for key, y in x.items()})
    report = check_dump(dict(x, mechanism="gated_delta_rule", o=o, final_state=final))
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13 and report.level == 1e-9


def test_grouped_heads_by_hand():
    """One token, beta 1, zero state: value head h reads key head h // 2, so o = (q . k) v with q . k = 1, 1, 4, 4."""
    q = np.array([1., 0, 2, 0]).reshape(1, 1, 2, 2)
    v = np.array([1., 2, 3, 4]).reshape(1, 1, 4, 1)
    dump = dict(mechanism="delta_rule", q=q, k=q, v=v, beta=np.ones((1, 1, 4)), o=np.array([1., 2, 12, 16]).reshape(1, 1, 4, 1), **{"opt.scale": 1})
    assert check_dump(dump).right
    dump["o"] = np.array([1., 8, 3, 16]).reshape(1, 1, 4, 1)                 # tiled instead of repeated
    report = check_dump(dump)
    assert not report.right and row(report, "o").by_head.tolist() == [0, 6 / 16, 9 / 16, 0]


# --- levels ------------------------------------------------------------------------------------------------------

def bfloat16(x):
    y = x.astype(np.float32).view(np.uint32)
    return ((y + 0x7fff + ((y >> 16) & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name, rounded", [("float32", lambda x: x.astype(np.float32)), ("float16", lambda x: x.astype(np.float16)), ("bfloat16", bfloat16),
                                           ("bfloat16", lambda x: bfloat16(x).astype(np.float64)),
                                           ("float16", lambda x: x.astype(np.float16).astype(np.float32))])
def test_rounding_is_no_error(name, rounded):
    dump = right()
    report = check_dump(dump | {key: rounded(dump[key]) for key in ("o", "final_state")})
    assert report.right and report.precision == name
    worst = max(row.error.relative for row in report.rows)
    assert worst > 1e-8 and not check_dump(dump | {key: rounded(dump[key] * (1 + 1.5 * report.level)) for key in ("o", "final_state")}).right


def test_values_that_need_no_rounding_are_not_taken_for_low_precision():
    q = np.ones((1, 16, 1, 1))
    dump = dict(mechanism="linear_attention", q=q, k=q, v=q, o=np.arange(1., 17).reshape(1, 16, 1, 1), **{"opt.scale": 1.})
    assert check_dump(dump).right and check_dump(dump).precision == "float64"
    dump["o"][0, 15] = 15.9375                           # off by less than bfloat16 would excuse
    assert not check_dump(dump).right


# --- where -------------------------------------------------------------------------------------------------------

def test_picture_of_a_state_that_is_not_carried():
    dump, x = right(B=1, T=130, H=1, HV=2), inputs(B=1, T=130, H=1, HV=2)
    tail = {key: y[:, 64:] if key != "state" else np.zeros_like(y) for key, y in x.items()}
    dump["o"][:, 64:, 1] = delta(tail)[0][:, :, 1]       # head 1 forgets at token 64
    report = check_dump(dump)
    o, text = row(report, "o"), str(report)
    assert np.flatnonzero(o.by_token > 1e-9)[0] == 64 and o.by_head[0] < 1e-13 < o.by_head[1] and o.where["head"] == 1
    assert re.search(r"^o +head \|9[01]\|  chunk of 64 \|9[01]9\|  token \(3 a digit\) \|9{21}[01].*9\|$", text, re.MULTILINE), text
    assert row(report, "final_state").right and not report.right and text.endswith("WRONG: o")
    assert report.as_dict()["outputs"][0]["by_chunk"][0] < 1e-13 < report.as_dict()["outputs"][0]["by_chunk"][1]


def test_place_and_values():
    dump = right()
    dump["o"][1, 7, 3, 2] = 1000.
    o = row(check_dump(dump), "o")
    assert o.where == dict(batch=1, head=3, token=7, column=2) and o.error.got == 1000
    dump = right()
    dump["final_state"][0, 2, 1, 4] += 50
    assert row(check_dump(dump), "final_state").where == dict(batch=0, head=2, row=1, column=4)
    assert row(check_dump(dump), "final_state").by_token is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sizes", [{}, dict(T=1, B=1, H=1, HV=1)])
def test_nan_and_infinity_are_wrong_and_placed(bad, sizes):
    dump = right(**sizes)
    dump["o"][-1, -1, -1, -1] = bad
    report = check_dump(dump)
    o = row(report, "o")
    assert not report.right and o.error.nonfinite == 1 and o.where["token"] == sizes.get("T", 9) - 1
    assert "x|" in str(report) and "NaN or infinite in 1 of" in str(report)
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["outputs"][0]["relative"] is None


# --- padding, packing --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding(side):
    """As if the padded tokens were not there, whatever they hold."""
    x, real = inputs(), np.ones((2, 9), int)
    real[1, dict(left=slice(0, 4), right=slice(6, 9), holes=slice(1, 8, 3))[side]] = 0
    o, final = delta(x)
    kept = real[1] == 1
    some = delta({key: y[1:] if key == "state" else y[1:, kept] for key, y in x.items()}, l2=False)
    o[1], final[1] = np.nan, some[1][0]
    o[1, kept] = some[0][0]
    for key in ("q", "k", "v", "g", "beta"):
        x[key][1, ~kept] = np.nan
    dump = dict(x, mechanism="gated_delta_rule", mask=real, o=o, final_state=final)
    report = check_dump(dump)
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13
    assert (row(report, "o").error.each[1][:, ~kept] == -1).all() and (row(report, "o").error.each[1][:, kept] >= 0).all()
    for key in ("q", "k", "v", "g", "beta"):
        x[key][1, ~kept] = -0.5
    assert not check_dump({key: y for key, y in dump.items() if key != "mask"}).right


def test_packed():
    x, cu = inputs(B=1, T=9), np.array([0, 4, 4, 9])
    x["state"] = np.random.default_rng(1).standard_normal((3, 4, 3, 5))
    parts = [delta({key: y[n:n + 1] if key == "state" else y[:, a:b] for key, y in x.items()}) for n, (a, b) in enumerate(zip(cu, cu[1:]))]
    dump = dict(x, mechanism="gated_delta_rule", cu_seqlens=cu, o=np.concatenate([o for o, _ in parts], 1), final_state=np.concatenate([S for _, S in parts]))
    report = check_dump(dump)
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13
    assert (dump["final_state"][1] == x["state"][1]).all()                   # the empty one
    dump["final_state"] = dump["final_state"][[0, 2, 1]]
    assert row(check_dump(dump), "final_state").where["sequence"] in (1, 2)


# --- gradients ---------------------------------------------------------------------------------------------------

def with_gradients(x, do, dfinal, l2=False, real=None):
    """The dump with derivatives by complex step through the plain loops, one number at a time."""
    o, final = delta(x, l2=l2)
    dump = dict(x, mechanism="gated_delta_rule", o=o, final_state=final, do=do, dfinal_state=dfinal, **{"opt.use_qk_l2norm": l2})
    for name in x:
        d = np.zeros(x[name].shape)
        for i in np.ndindex(d.shape):
            y = {key: z.astype(complex) for key, z in x.items()}
            y[name][i] += 1e-30j
            out, last = delta(y, l2=l2)
            d[i] = ((out * do).sum() + (last * dfinal).sum()).imag / 1e-30
        dump["d" + name] = d
    return dump


@pytest.fixture(scope="module")
def gradients():
    rng, x = np.random.default_rng(5), inputs(B=1, T=4, H=1, HV=2, K=2, V=2)
    return with_gradients(x, rng.standard_normal(x["v"].shape), rng.standard_normal(x["state"].shape), l2=True)


def test_gradients_of_grouped_heads(gradients):
    report = check_dump(gradients)
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13
    assert {row.name for row in report.rows} == {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dstate"}
    assert check_dump({key: x for key, x in gradients.items() if key not in ("o", "final_state", "dq")}).right
    assert row(check_dump(gradients | dict(dk=gradients["dk"][..., ::-1])), "dk").right is False


def test_missing_cotangents_are_zero(gradients):
    without = {key: x for key, x in gradients.items() if key != "dfinal_state"}
    assert not check_dump(without).right
    assert check_dump(gradients | dict(dfinal_state=0 * gradients["dfinal_state"])).as_dict()["outputs"] == check_dump(without).as_dict()["outputs"]
    only = {key: x for key, x in gradients.items() if key != "do"}
    assert check_dump(gradients | dict(do=0 * gradients["do"])).as_dict()["outputs"] == check_dump(only).as_dict()["outputs"]


def test_gradients_with_padding_and_packing(gradients):
    """A padded token in front, and the same sequence behind an empty one, have the same gradients."""
    tokens = [key for key, x in gradients.items() if getattr(x, "ndim", 0) > 1 and "state" not in key]
    padded = gradients | {key: np.concatenate([gradients[key][:, :1] * 7, gradients[key]], 1) for key in tokens} | dict(g=None, dg=None)
    padded |= {key: np.concatenate([np.full_like(gradients[key][:, :1], -1), gradients[key]], 1) for key in ("g", "dg")}
    report = check_dump(padded | dict(mask=np.array([[0, 1, 1, 1, 1]])))
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13
    states = {key: np.concatenate([0 * x, x]) for key, x in gradients.items() if "state" in key}
    states["dstate"][0] = states["dfinal_state"][0] = 1                      # what comes in at the end of nothing goes out in front
    states["final_state"][0] = states["state"][0]
    report = check_dump(gradients | states | dict(cu_seqlens=np.array([0, 0, 4])))
    assert report.right and max(row.error.relative for row in report.rows) < 1e-13


# --- softmax and other states ------------------------------------------------------------------------------------

def softmax(q, k, v, see, scale, bias=0):
    """Layout bthd, key heads by number."""
    o, G = np.zeros(q.shape[:3] + v.shape[3:]), q.shape[2] // k.shape[2]
    bias = np.broadcast_to(bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    for b, i, h in np.ndindex(q.shape[:3]):
        js = [j for j in range(k.shape[1]) if see(i, j) and bias[b, h, i, j] > -np.inf]
        if js:
            w = np.exp([scale * (q[b, i, h] @ k[b, j, h // G]) + bias[b, h, i, j] for j in js])
            o[b, i, h] = sum(w[n] * v[b, j, h // G] for n, j in enumerate(js)) / w.sum()
    return o


@pytest.fixture
def attention():
    normal = np.random.default_rng(3).standard_normal
    return dict(q=normal((2, 6, 4, 3)), k=normal((2, 6, 2, 3)), v=normal((2, 6, 2, 5)))


@pytest.mark.parametrize("options, see", [
    ({}, lambda i, j: j <= i), ({"opt.causal": False}, lambda i, j: True), ({"opt.window": 3}, lambda i, j: i - 3 < j <= i),
    ({"opt.scale": 2., "opt.mask": np.eye(6, dtype=bool)[None, None]}, lambda i, j: i == j)])
def test_softmax(attention, options, see):
    dump = attention | options | dict(mechanism="softmax_attention", o=softmax(**attention, see=see, scale=options.get("opt.scale", 3 ** -0.5)))
    assert check_dump(dump).right and not check_dump(dump | dict(o=dump["o"][:, :, ::-1])).right
    if "opt.window" in options:
        assert check_dump(dump | dict(mechanism="sliding_window_attention")).right
        assert not check_dump(dump | {"opt.window": 4}).right
    else:
        with pytest.raises(DumpError, match="needs opt.window"):
            check_dump(dump | dict(mechanism="sliding_window_attention"))


@pytest.mark.parametrize("shape", [(6, 6), (4, 6, 6), (2, 1, 6, 6), (1, 4, 1, 6)])
def test_softmax_bias_of_every_shape(attention, shape):
    bias = np.random.default_rng(4).standard_normal(shape)
    bias[..., 0, 3:] = -np.inf
    o = softmax(**attention, see=lambda i, j: True, scale=3 ** -0.5, bias=bias)
    dump = attention | {"mechanism": "softmax_attention", "opt.causal": False, "opt.bias": bias, "o": o}
    assert check_dump(dump).right
    real = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]])
    for b in range(2):
        kept = np.flatnonzero(real[b])
        one = {key: x[b:b + 1, kept] for key, x in attention.items()}
        whole = np.broadcast_to(bias, (2, 4, 6, 6))[b:b + 1][:, :, kept][:, :, :, kept]
        o[b] = np.nan
        o[b, kept] = softmax(**one, see=lambda i, j: True, scale=3 ** -0.5, bias=whole)[0]
    assert check_dump(dump | dict(mask=real, o=o)).right


def test_softmax_with_a_cache_and_packed(attention):
    o = softmax(**attention, see=lambda i, j: j <= i, scale=3 ** -0.5)
    new = {key: x[:, 4:] for key, x in attention.items()}
    cache = {"state.k": attention["k"][:, :4], "state.v": attention["v"][:, :4], "final_state.k": attention["k"], "final_state.v": attention["v"]}
    dump = new | cache | dict(mechanism="softmax_attention", o=o[:, 4:])
    assert check_dump(dump).right and not check_dump(dump | {"final_state.v": 2 * attention["v"]}).right
    with pytest.raises(DumpError, match="state.k and state.v: give all or none"):
        check_dump({key: x for key, x in dump.items() if key != "state.v"})
    one = {key: x[:1] for key, x in attention.items()}
    packed = dict(one, mechanism="softmax_attention", cu_seqlens=[0, 2, 6], o=np.concatenate(
        [softmax(**{key: x[:, a:b] for key, x in one.items()}, see=lambda i, j: j <= i, scale=3 ** -0.5) for a, b in ((0, 2), (2, 6))], 1))
    assert check_dump(packed).right and not check_dump({key: x for key, x in packed.items() if key != "cu_seqlens"}).right


def test_normalized_state_by_hand():
    """S = 3, z = 1, then k = 1, v = 5: o = (3 + 5) / (1 + 1)."""
    one = np.ones((1, 1, 1, 1))
    dump = {"mechanism": "normalized_linear_attention", "q": one, "k": one, "v": 5 * one, "state.S": 3 * one, "state.z": one[0], "o": 4 * one,
            "final_state.S": 8 * one, "final_state.z": 2 * one[0]}
    assert check_dump(dump).right and not check_dump(dump | {"final_state.z": one[0]}).right


def test_block_topk_by_hand():
    """Two blocks of two keys, scores 0 everywhere: own block and the first; a query sees its own block up to itself."""
    v = np.array([1., 3, 5, 9, 20]).reshape(1, 5, 1, 1)
    z = 0 * v
    dump = {"mechanism": "block_topk_attention", "q": z, "k": z, "v": v, "opt.block_size": 2, "opt.topk": 2, "opt.causal": True,
            "o": np.array([1, 2, 3, 18 / 4, 24 / 3]).reshape(1, 5, 1, 1)}
    assert check_dump(dump).right
    assert not check_dump(dump | {"opt.topk": 1}).right
    with pytest.raises(DumpError, match="opt.topk missing"):
        check_dump({key: x for key, x in dump.items() if key != "opt.topk"})


# --- what cannot be used -----------------------------------------------------------------------------------------

def put(x, value):
    x = x.copy()
    x[0, 0, 0] = value
    return x


UNUSABLE = {
    "unknown mechanism": (dict(mechanism="gated_deltarule"), "unknown mechanism 'gated_deltarule'; did you mean gated_delta_rule"),
    "mechanism a number": (dict(mechanism=3), "mechanism must be one string"),
    "unknown layout": (dict(layout="btdh"), "unknown layout 'btdh'"),
    "missing": (dict(g=None, beta=None), "g and beta missing: gated_delta_rule needs q, k, v, g, beta"),
    "unknown key": (dict(betta=np.ones(3)), "unknown key 'betta'.*did you mean beta"),
    "option of another": ({"opt.window": 4}, "unknown key 'opt.window'"),
    "another mechanism": (dict(mechanism="gla"), "unknown key 'beta'.*these arrays fit gated_delta_rule"),
    "gate of another": (dict(mechanism="kda"), r"g .* is not \[B, T, HV, K\].*these arrays fit gated_delta_rule"),
    "no output": (dict(o=None, final_state=None), "nothing to compare"),
    "gradients without cotangents": (dict(dq=np.ones((2, 9, 2, 3))), "dq cannot be checked without do or dfinal_state"),
    "integers": (dict(q=np.ones((2, 9, 2, 3), int)), "q holds int64"),
    "strings": (dict(v=np.array("v")), "v holds <U1"),
    "complex": (dict(o=np.ones((2, 9, 4, 5), complex)), "o holds complex128"),
    "objects": (dict(q=np.array([None, 1])), "q holds objects"),
    "NaN in an input": (dict(q=np.full((2, 9, 2, 3), np.nan)), "q holds NaN in 108 of 108 places"),
    "infinite state": (dict(state=np.full((2, 4, 3, 5), -np.inf)), "state holds infinity"),
    "infinite gate": (dict(g=np.full((2, 9, 4), np.inf)), "g holds infinity"),
    "a factor for a logarithm": (dict(g=np.full((2, 9, 4), 0.9)), "g is the natural logarithm of a decay.*positive in 72 of 72"),
    "three axes": (dict(q=np.ones((9, 2, 3))), r"q \(9, 2, 3\) is not \[B, T, H, K\]"),
    "another length": (dict(beta=np.ones((2, 8, 4))), "T is 8 here and 9 in q"),
    "heads that make no groups": (dict(q=np.ones((2, 9, 3, 3)), k=np.ones((2, 9, 3, 3))), "HV = 4 is no multiple of H = 3"),
    "transposed state": (dict(final_state=np.ones((2, 4, 5, 3))), "K is 5 here and 3 in q"),
    "output of another shape": (dict(o=np.ones((2, 4, 9, 5))), "o .* is not"),
    "mask of another shape": (dict(mask=np.ones((9, 2))), "mask must be"),
    "mask of other values": (dict(mask=np.full((2, 9), 2)), "mask must be"),
    "packed batch": (dict(cu_seqlens=np.array([0, 9])), "need B = 1"),
    "scale a string": ({"opt.scale": "one"}, "opt.scale must be one finite number"),
    "scale an array": ({"opt.scale": np.ones(3)}, "opt.scale must be one finite number"),
    "norm a number": ({"opt.use_qk_l2norm": 0.5}, "opt.use_qk_l2norm must be true or false"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable(name, tmp_path, capsys):
    change, message = UNUSABLE[name]
    dump = right() | change
    with pytest.raises(DumpError, match=message) as error:
        check_dump(dump)
    assert isinstance(error.value, ValueError) and len(str(error.value).splitlines()) == 1
    np.savez(tmp_path / "dump.npz", **{key: x for key, x in dump.items() if x is not None and getattr(np.asarray(x), "dtype") != object})
    if name != "objects":
        assert compare_command(str(tmp_path / "dump.npz")) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("npattn compare: ") and err.count("\n") == 1


@pytest.mark.parametrize("offsets, message", [([0, 4, 8], "rise from 0 to T = 9"), ([1, 9], "rise from 0"), ([0, 5, 4, 9], "rise from 0"), ([0., 9], "integer"),
                                              ([0, 3, 9], "one row for each of the 2 packed sequences")])
def test_unusable_offsets(offsets, message):
    with pytest.raises(DumpError, match=message):
        check_dump(right(B=1) | dict(cu_seqlens=np.array(offsets)))


def test_refused_by_the_mechanism(attention):
    with pytest.raises(DumpError, match="window") as error:
        check_dump(attention | {"mechanism": "softmax_attention", "o": attention["q"][..., [0, 0, 0, 0, 0]], "opt.window": -1})
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(DumpError, match="opt.mask holds int64"):
        check_dump(attention | {"mechanism": "softmax_attention", "o": np.ones((2, 6, 4, 5)), "opt.mask": np.ones((6, 6), int)})
    with pytest.raises(DumpError, match="nor broadcasts to it"):
        check_dump(attention | {"mechanism": "softmax_attention", "o": np.ones((2, 6, 4, 5)), "opt.mask": np.ones((3, 6, 6), bool)})
    for bias in None, np.ones((6, 6)):
        with pytest.raises(DumpError, match="dbias must have the shape of opt.bias"):
            check_dump(attention | {"mechanism": "softmax_attention", "do": np.ones((2, 6, 4, 5)), "opt.bias": bias, "dbias": np.ones((1, 6))})
    with pytest.raises(DumpError, match="leave it out"):
        check_dump(attention | {"mechanism": "softmax_attention", "mask": np.ones((2, 6)), "final_state.k": attention["k"], "final_state.v": attention["v"]})
    with pytest.raises(DumpError, match="as many queries as keys"):
        check_dump(attention | {"mechanism": "softmax_attention", "mask": np.ones((2, 5)), "q": attention["q"][:, :5], "o": np.ones((2, 5, 4, 5))})


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def other_zip(**entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        for name, text in entries.items():
            z.writestr(name, text)
    return file.getvalue()


def single():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


GOOD = npz(**right())
BROKEN = {
    "empty": (b"", "no .npz file"), "text": (b"q k v", "no .npz"), "a pickle": (pickle.dumps(dict(q=1)), "never loaded"),
    "pickled objects": (npz(q=np.array([{}])), "q cannot be read.*never loaded"), "one array": (single(), "single array"),
    "half": (GOOD[:len(GOOD) // 2], "no .npz"), "cut short": (GOOD[:-20], "no .npz"),
    "a flipped bit": (GOOD[:300] + bytes([GOOD[300] ^ 1]) + GOOD[301:], "q cannot be read"),
    "no array inside": (other_zip(notes="hi"), "notes is no array"), "half an array inside": (other_zip(**{"q.npy": single()[:-4]}), "q cannot be read"),
    "nothing inside": (other_zip(), "does not say its mechanism"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name, tmp_path, capsys):
    content, message = BROKEN[name]
    path = tmp_path / "dump.npz"
    path.write_bytes(content)
    with pytest.raises(DumpError, match=message) as error:
        check_dump(path)
    assert len(str(error.value).splitlines()) == 1
    assert compare_command(str(path)) == 2 and capsys.readouterr().err.count("\n") == 1


# --- the command -------------------------------------------------------------------------------------------------

def test_command(tmp_path, capsys):
    path = tmp_path / "dump.npz"
    path.write_bytes(GOOD)
    assert compare_command(str(path), None, None, False) == 0 and capsys.readouterr().out.endswith("RIGHT\n")
    assert compare_command(str(path), json=True) == 0 and json.loads(capsys.readouterr().out)["verdict"] == "right"
    assert compare_command(str(path), mechanism="gated_delta_rule_predict_first", json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "explained" and found["names"] == ["decay before predict"] and found["mechanism"] == "gated_delta_rule_predict_first" and len(found["outputs"][0]["by_token"]) == 9
    assert compare_command(str(path), layout="bhtd") == 2 and "all arrays fit layout bthd" in capsys.readouterr().err
    assert compare_command(str(tmp_path / "none.npz")) == 2 and "there is no such file" in capsys.readouterr().err
    assert compare_command(str(tmp_path)) == 2 and capsys.readouterr().err.count("\n") == 1


def test_an_open_file_and_foreign_arrays():
    class Foreign:
        def __init__(self, x):
            self.x = x

        def __array__(self, dtype=None, copy=None):
            return self.x

    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("call detach first")

    assert check_dump(io.BytesIO(GOOD)).right
    dump = right()
    assert check_dump(dump | dict(q=Foreign(dump["q"]), layout=None)).right
    assert repr(check_dump(dump | dict(o=2 * dump["o"]))).startswith("<Report on gated_delta_rule: [<o: wrong, relative error 1.0e+00>, <final_state: right")
    with pytest.raises(DumpError, match="q cannot be had as a NumPy array: call detach first"):
        check_dump(dump | dict(q=Broken()))


# --- the shipped data --------------------------------------------------------------------------------------------

def mechanism_of(name):
    stored = str(data.dump(name)["mechanism"])
    return ALIASES.get(stored, stored)


WITH_DATA = {mechanism_of(name) for name in data.provenance()}


def test_shipped_data_are_of_mechanisms_that_there_are():
    assert WITH_DATA <= set(CATALOGUE) and {"gated_delta_rule", "kda", "gla", "softmax_attention"} <= WITH_DATA


@pytest.mark.parametrize("name", CATALOGUE)
def test_shipped_data(name):
    found = framework_error(CATALOGUE[name])
    assert {e.form for e in found} == ({"loop", "matrix", "chunk", "loop_vjp", "matrix_vjp", "chunk_vjp"} if name in WITH_DATA else set())
    assert all(e.right and e.error <= e.bound and e.source for e in found)


@pytest.mark.parametrize("form", ["loop", "matrix", "chunk", "loop_vjp", "matrix_vjp", "chunk_vjp"])
def test_a_broken_form_is_seen(form, monkeypatch):
    whole = getattr(module, form)

    @functools.wraps(whole)
    def broken(*args, **others):
        result = whole(*args, **others)
        return dict(result, g=result["g"] * 2) if form.endswith("vjp") else (result[0] * 1.001, result[1])

    monkeypatch.setattr(module, form, broken)
    wrong = {e.form for e in framework_error(CATALOGUE["gated_delta_rule"]) if not e.right}
    assert form in wrong and wrong <= {form, form.removesuffix("_vjp")}


def test_what_ships():
    about = data.provenance()
    assert all(check_dump(data.dump(name)).right for name in about)
    with pytest.raises(KeyError, match="no dump 'x' is shipped"):
        data.dump("x")


# --- small heads, levels of each output, and what the report says -------------------------------------------------

def single_precision(dump):
    return {key: x.astype(np.float32) if isinstance(x, np.ndarray) else x for key, x in dump.items()}


def small_head(by=5e-5):
    """A dump in float32 whose head 3 has values smaller than the others'."""
    x = inputs() | dict(state=np.zeros((2, 4, 3, 5)))
    x["v"][:, :, 3] *= by
    x = single_precision(x)
    o, final = delta({key: y.astype(np.float64) for key, y in x.items()})
    return single_precision(dict(x, mechanism="gated_delta_rule", o=o, final_state=final))


def test_a_small_head_of_zeros_is_wrong():
    dump = small_head()
    assert check_dump(dump).right and row(check_dump(dump), "o").heads == ()
    dump["o"][1, :, 3] = 0
    report = check_dump(dump)
    o = row(report, "o")
    assert o.near and o.error.relative < 1e-4 and not o.right and not report.right
    assert [head[:2] for head in o.heads] == [(1, 3)] and o.heads[0][2] == 1 and o.own[3] == 1 and max(o.own[:3]) < 1e-6
    assert "o, batch 1, head 3: wrong on its own scale, by 1.0e+00 of its largest entry" in str(report) and str(report).endswith("WRONG: o")
    plain = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert plain["verdict"] == "wrong" and plain["outputs"][0]["wrong_on_own_scale"][0]["head"] == 3
    found = diagnose(dump)
    assert found.verdict == "unexplained" and found.picture == (
        "o is right by its largest entry, and wrong in 1 of 8 heads (of all batch rows) that are small beside it; they are zero there.",)


@pytest.mark.parametrize("name, rounded", [("bfloat16", lambda x: bfloat16(x)), ("float16", lambda x: x.astype(np.float16))])
def test_a_small_head_in_low_precision(name, rounded):
    dump = small_head(2e-3)
    dump |= {key: rounded(dump[key]) for key in ("o", "final_state")}
    assert check_dump(dump).right and check_dump(dump).precision == name
    dump["o"][:, :, 3] *= -1
    assert len(row(check_dump(dump), "o").heads) == 2 and not check_dump(dump).right


def test_a_head_of_exact_zeros_has_no_scale():
    dump = small_head(0)
    assert check_dump(dump).right and row(check_dump(dump), "o").own[3] == -1
    dump["o"][0, 0, 3, 0] = 1e-7
    assert check_dump(dump).right
    dump["o"][0, 0, 3, 0] = 1e-2
    assert not check_dump(dump).right


def test_a_head_that_cancels_is_excused():
    """dq of a query that sees equal values is sum p (do . v - do . o) k = 0, but for the rounding of do . v, of size 1: in head 1 values
    differ by 1e-6, which float32 hardly holds.
    """
    rng = np.random.default_rng(0)
    q, k, do = (rng.standard_normal((1, 6, 2, 4)).astype(np.float32) for _ in range(3))
    v = rng.standard_normal((1, 6, 2, 4))
    v[:, :, 1] = 1 + 1e-6 * v[:, :, 1]
    v = v.astype(np.float32)
    dq = np.zeros(q.shape)
    rough = np.zeros(q.shape, np.float32)
    for h in range(2):
        for made, kind in ((dq, np.float64), (rough, np.float32)):
            a, b, c, d = (x[0, :, h].astype(kind) for x in (q, k, v, do))
            s = a @ b.T * kind(0.5)
            w = np.exp(s - s.max(-1, keepdims=True)) * np.tri(6, dtype=kind)
            p = w / w.sum(-1, keepdims=True)
            dp = d @ c.T
            made[0, :, h] = (p * (dp - (p * dp).sum(-1, keepdims=True))) @ b * kind(0.5)
    dump = dict(mechanism="softmax_attention", q=q, k=k, v=v, do=do)
    report = check_dump(dict(dump, dq=rough))
    assert row(report, "dq").own[1] > 1e-2 and report.right                  # more than a head may be off that does not cancel
    assert check_dump(dict(dump, dq=dq)).right


def test_one_output_in_bfloat16_does_not_excuse_another():
    dump = right() | dict(o=bfloat16(right()["o"]))
    assert check_dump(dump | dict(final_state=dump["final_state"].astype(np.float32))).right
    report = check_dump(dump | dict(final_state=(dump["final_state"] * 1.015).astype(np.float32)))
    assert row(report, "o").right and not row(report, "final_state").right and not report.right
    assert "o holds bfloat16 values" in str(report) and "final_state holds float32 values: right means a relative error of at most 1e-04" in str(report)


def test_inputs_in_bfloat16_excuse_a_float32_state():
    x = inputs()
    x |= {key: bfloat16(x[key]) for key in "qkv"}
    o, final = delta({key: y.astype(np.float64) for key, y in x.items()})
    dump = dict(x, mechanism="gated_delta_rule", o=bfloat16(o))
    report = check_dump(dump | dict(final_state=(final * 1.005).astype(np.float32)))
    assert report.right and "final_state holds float32 values made from bfloat16 q, k or v: right means a relative error of at most 1e-02" in str(report)
    assert not check_dump(dump | dict(final_state=(final * 1.015).astype(np.float32))).right
    assert not check_dump(dump | dict(final_state=final * 1.005)).right      # float64 is no kernel's


def test_few_values_are_like_the_other_outputs():
    dump = right(B=1, T=9, H=1, HV=1)
    dump |= {key: bfloat16(dump[key]) for key in ("o", "final_state")}
    assert dump["final_state"].size < 16 and check_dump(dump).right


@pytest.mark.parametrize("mechanism, options, lines", [
    ("softmax_attention", {}, ["causal True: there is no opt.causal", "window unlimited: there is no opt.window", "scale K ** -0.5: there is no opt.scale"]),
    ("softmax_attention", {"opt.causal": False}, ["causal False", "window unlimited: there is no opt.window"]),
    ("normalized_linear_attention", {}, ["eps 0: there is no opt.eps"]),
    ("block_topk_attention", {"opt.topk": 2, "opt.block_size": 2}, ["causal False: there is no opt.causal", "topk 2"])])
def test_defaults_are_said(attention, mechanism, options, lines):
    few = {key: x[:, :, :2] for key, x in attention.items()}
    report = check_dump(few | options | {"mechanism": mechanism, "o": few["v"]})
    assert set(lines) <= set(report.assumed)


def test_from_where_positions_count(attention):
    def said(**change):
        return " ".join(check_dump(attention | dict(mechanism="softmax_attention", o=np.ones((2, 1, 4, 5)), q=attention["q"][:, :1]) | change).assumed)

    assert "queries are 1 and new keys 6: both are counted from the first one, from the top left, as there is no cache" in said()
    assert "query i sees keys up to i" in said() and "sees" not in said(**{"opt.causal": False})
    assert "behind the cache" in said(**{"state.k": attention["k"], "state.v": attention["v"]})


@pytest.mark.parametrize("key, wanted", [("initial_state", "state"), ("gk", "g"), ("h0", "state"), ("ht", "final_state"), ("scale", "opt.scale"),
                                         ("causal", None), ("gg", None), ("fnal_state", "final_state")])
def test_what_an_unknown_key_may_mean(key, wanted):
    with pytest.raises(DumpError) as error:
        check_dump({name: x for name, x in right().items() if name != "state"} | {key: np.ones(3)})
    assert (f"; did you mean {wanted}?" if wanted else "unknown key") in str(error.value) and ("did you mean" in str(error.value)) == bool(wanted)


def test_digits_that_differ():
    dump = right()
    dump["o"] = dump["o"] * (1 + 3e-9)
    got, expected = re.search(r"^o +WRONG .* (\S+), expected (\S+),", str(check_dump(dump)), re.MULTILINE).groups()
    assert got != expected and float(got) != float(expected)
    assert "relative: max |got - expected| / max |expected| over an array" in str(check_dump(dump))


def test_plain_data_is_in_the_order_of_the_dump(attention):
    for layout in ("bthd", "bhtd"):
        dump = {key: x.swapaxes(1, 2) if layout == "bhtd" and getattr(x, "ndim", 0) > 2 and key != "state" else x for key, x in right().items()}
        dump |= {key: right()[key] for key in ("final_state",)}
        o, final = check_dump(dump | dict(layout=layout)).as_dict()["outputs"]
        assert o["shape"] == list(dump["o"].shape) and final["shape"] == [2, 4, 3, 5] and final["axes"] == ["B", "HV", "K", "V"]
        assert o["axes"] == (["B", "T", "HV", "V"] if layout == "bthd" else ["B", "HV", "T", "V"])
    plain = check_dump(attention | dict(mechanism="softmax_attention", o=np.ones((2, 6, 4, 5)))).as_dict()
    assert not [letter for letter in plain["sizes"] if "+" in letter] and plain["relative_to"] == "the largest |expected| of the array"
    real = np.ones((2, 9), int)
    real[:, 0] = 0
    dump = right() | dict(mask=real)
    dump["o"][0, 3, 0, 0] = np.nan
    by_token = check_dump(dump).as_dict()["outputs"][0]["by_token"]
    assert by_token[0] == -1 and by_token[3] is None and by_token[4] >= 0


def test_gradients_that_are_not_summed_over_heads(attention):
    with pytest.raises(DumpError, match="H is 4 here and 2 in q: sum over the value heads that share a key head$"):
        check_dump(right() | dict(do=right()["o"], dq=np.ones((2, 9, 4, 3))))
    with pytest.raises(DumpError, match="sum over the query heads that share a key head$"):
        check_dump(attention | dict(mechanism="softmax_attention", do=np.ones((2, 6, 4, 5)), dv=np.ones((2, 6, 4, 5))))
    with pytest.raises(DumpError, match="H is 3 here and 2 in q$"):
        check_dump(right() | dict(do=right()["o"], dq=np.ones((2, 9, 3, 3))))


@pytest.mark.parametrize("sizes", [dict(V=0), dict(K=0), dict(T=0), dict(K=0, V=0)])
@pytest.mark.parametrize("mechanism", ["gated_delta_rule", "gated_delta_rule_predict_first"])
def test_nothing_along_an_axis(sizes, mechanism):
    dump = {key: x for key, x in inputs(**sizes).items() if key != "state"}
    dump |= dict(mechanism=mechanism, o=np.zeros(dump["v"].shape))
    assert diagnose(dump, pairs=False).verdict == "right" and str(diagnose(dump, pairs=False)).endswith("RIGHT")
    if dump["o"].size:
        assert diagnose(dump | dict(o=dump["o"] + 1), pairs=False).verdict == "unexplained"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [1e300, -1.7e308, np.inf, np.nan])
def test_huge_outputs_do_not_warn(bad):
    dump = right()
    dump["o"][0, 0, 0, 0] = bad
    for found in (check_dump(dump), diagnose(dump, pairs=False)):
        assert not found.right and json.dumps(found.as_dict(), allow_nan=False) and str(found)
