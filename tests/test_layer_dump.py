"""Dumps of a Gated DeltaNet layer: every row of the table for it is recognised on tensors of a plain layer, the first wrong tensor
is named, and what cannot be used.
"""
from pathlib import Path

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.compare import DumpError, check_dump, diagnose
from npattn.compare.hypotheses import HYPOTHESES
from npattn.compare.hypotheses.layer import LAYER

B, T, C, H, G, K, V, N = 2, 9, 10, 2, 3, 4, 5, 3         # N taps
HV, CHANNELS = H * G, 2 * H * K + H * G * V
SIGMOID = lambda x: 1 / (1 + np.exp(-x))
SILU = lambda x: x * SIGMOID(x)
SOFTPLUS = lambda x: np.log1p(np.exp(x))
UNIT = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
RMS = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def weights(fused, seed=0, width=C):
    normal = np.random.default_rng(seed).standard_normal
    w = {"in_proj_qkvz.weight": normal((CHANNELS + HV * V, width)), "in_proj_ba.weight": normal((2 * HV, width))} if fused else \
        {"in_proj_qkv.weight": normal((CHANNELS, width)), "in_proj_z.weight": normal((HV * V, width)),
         "in_proj_b.weight": normal((HV, width)),
         "in_proj_a.weight": normal((HV, width))}
    return w | {"conv1d.weight": normal((CHANNELS, 1, N)), "A_log": normal(HV), "dt_bias": normal(HV), "norm.weight": normal(V),
                "out_proj.weight": normal((width, HV * V))}


def plain(x, w, state=(None, None), mask=None, project=None, taps=None, act=SILU, ahead=0, unit=UNIT, beta=SIGMOID, gate=None,
          scale=K ** -0.5,
          key_head=lambda h: h // G, predict_first=False, norm=None, out=None):
    """Every tensor of the layer, token by token and head by head."""
    n, A, dt = len(x), w["A_log"], w["dt_bias"]
    shown = x if mask is None else x * mask[..., None]
    p = (project or projected)(shown, w)
    y = {name: p[name] for name in ("qkv", "z", "b", "a")}
    first = np.zeros((n, N, CHANNELS)) if state[0] is None else state[0]
    inputs = np.concatenate([first, p["qkv"], np.zeros((n, 1, CHANNELS))], 1)
    filters = w["conv1d.weight"][:, 0] if taps is None else taps(w["conv1d.weight"][:, 0])
    filtered = np.zeros((n, T, CHANNELS))
    for t in range(T):
        for j in range(N):
            filtered[:, t] += filters[:, j] * inputs[:, t + 1 + j + ahead]
    if ahead < 0:
        filtered[:, 0] = 0
    y |= {"conv": act(filtered), "final_state.conv": inputs[:, T:T + N]}
    q, k, v = (part.reshape(n, T, -1, D) for part, D in zip(np.split(y["conv"], [H * K, 2 * H * K], -1), (K, K, V)))
    y |= dict(q=unit(q), k=unit(k), v=v, beta=beta(p["b"]), g=(gate or (lambda a, A, dt: -np.exp(A) * SOFTPLUS(a + dt)))(p["a"], A, dt))
    core, S = np.zeros((n, T, HV, V)), np.zeros((n, HV, K, V)) if state[1] is None else state[1].copy()
    for b, h in np.ndindex(n, HV):
        for t in range(T):
            q, k, M = y["q"][b, t, key_head(h)], y["k"][b, t, key_head(h)], S[b, h]
            F = np.exp(y["g"][b, t, h]) * M
            S[b, h] = F + np.outer(k, y["beta"][b, t, h] * (v[b, t, h] - (M if predict_first else F).T @ k))
            core[b, t, h] = scale * (S[b, h].T @ q)
    y |= {"core": core, "final_state.S": S}
    y["gated"] = (norm or (lambda x, z, w: w * RMS(x) * SILU(z)))(core, y["z"], w["norm.weight"])
    y["y"] = y["gated"].reshape(n, T, -1) @ (w["out_proj.weight"].T if out is None else out(w["out_proj.weight"]))
    return y


def projected(x, w):
    if "in_proj_qkv.weight" in w:
        return {name: part.reshape(part.shape[:2] + (HV, V)) if name == "z" else part for name, part in
                ((name, x @ w[f"in_proj_{name}.weight"].T) for name in ("qkv", "z", "b", "a"))}
    rows, both = x @ w["in_proj_qkvz.weight"].T, x @ w["in_proj_ba.weight"].T
    q, k, v, z, b, a = [], [], [], [], [], []
    for h in range(H):                                   # the rows of one key head after the other
        one = rows[..., h * (2 * K + 2 * G * V):(h + 1) * (2 * K + 2 * G * V)]
        for into, part in zip((q, k, v, z), np.split(one, [K, 2 * K, 2 * K + G * V], -1)):
            into.append(part)
        b.append(both[..., 2 * G * h:2 * G * h + G])
        a.append(both[..., 2 * G * h + G:2 * G * (h + 1)])
    join = lambda parts: np.concatenate(parts, -1)
    return dict(qkv=join([join(q), join(k), join(v)]), z=join(z).reshape(x.shape[:2] + (HV, V)), b=join(b), a=join(a))


def swapped(x, w):
    p = projected(x, w)
    return dict(p, b=p["a"], a=p["b"])


def halves(x, w):
    both = x @ w["in_proj_ba.weight"].T
    return dict(projected(x, w), b=both[..., :HV], a=both[..., HV:])


def quarters(x, w):
    rows = x @ w["in_proj_qkvz.weight"].T
    return dict(projected(x, w), qkv=rows[..., :CHANNELS], z=rows[..., CHANNELS:].reshape(x.shape[:2] + (HV, V)))


def over_all(x, z, w):
    return w * RMS(x.reshape(len(x), T, -1)).reshape(x.shape) * SILU(z)


FLAWS = {
    "b and a swapped": dict(project=swapped), "b and a split in the middle": dict(project=halves),
    "q, k, v, z split in four": dict(project=quarters),
    "taps flipped": dict(taps=lambda f: f[:, ::-1]), "activation missing": dict(act=lambda x: x),
    "convolution one token ahead": dict(ahead=1),
    "convolution one token late": dict(ahead=-1), "l2 norm missing in the layer": dict(unit=lambda x: x),
    "RMS norm in place of the layer's l2 norm": dict(unit=RMS),
    "eps on the mean in the layer's l2 norm": dict(unit=lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + K * 1e-6)),
    "eps outside the root in the layer's l2 norm": dict(unit=lambda x: x / (np.sqrt((x * x).sum(-1, keepdims=True)) + 1e-6)),
    "sigmoid missing": dict(beta=lambda b: b), "sigmoid doubled": dict(beta=lambda b: 2 * SIGMOID(b)),
    "softplus missing": dict(gate=lambda a, A, dt: -np.exp(A) * abs(a + dt)),
    "dt_bias missing": dict(gate=lambda a, A, dt: -np.exp(A) * SOFTPLUS(a)),
    "dt_bias after softplus": dict(gate=lambda a, A, dt: -np.exp(A) * abs(SOFTPLUS(a) + dt)),
    "exp of A_log missing": dict(gate=lambda a, A, dt: -abs(A) * SOFTPLUS(a + dt)),
    "A_log left out": dict(gate=lambda a, A, dt: -SOFTPLUS(a + dt)),
    "bounded gate, -5": dict(gate=lambda a, A, dt: -5 * SIGMOID(np.exp(A) * (a + dt))), "scale missing in the layer": dict(scale=1.0),
    "scale twice in the layer": dict(scale=1 / K),
    "key heads tiled in the layer": dict(key_head=lambda h: h % H), "predict before decay in the layer": dict(predict_first=True),
    "gate before the norm": dict(norm=lambda x, z, w: w * RMS(x * SILU(z))),
    "sigmoid gate": dict(norm=lambda x, z, w: w * RMS(x) * SIGMOID(z)),
    "gate missing": dict(norm=lambda x, z, w: w * RMS(x)), "1 + w in the gated norm": dict(norm=lambda x, z, w: (1 + w) * RMS(x) * SILU(z)),
    "w - 1 in the gated norm": dict(norm=lambda x, z, w: (w - 1) * RMS(x) * SILU(z)), "norm over all heads": dict(norm=over_all)}
OTHERS = ["padding not hidden", "convolution's state ignored", "recurrence's state ignored", "output weight transposed"]
FIRST = dict(projection="qkv z b a", convolution="conv", norm="q k", gates="beta g", core="core", gated_norm="gated", output="y")


def dump_of(fused=False, seed=1, state=True, width=C):
    normal = np.random.default_rng(seed).standard_normal
    w, x = weights(fused, width=width), normal((B, T, width))
    first = (normal((B, N, CHANNELS)), normal((B, HV, K, V))) if state else (None, None)
    dump = {"mechanism": "gated_deltanet", "x": x, "opt.key_heads": H, **{f"weight.{name}": y for name, y in w.items()}}
    return x, w, first, dump | ({"state.conv": first[0], "state.S": first[1]} if state else {})


def test_every_row_has_its_flaw():
    assert {row.name for row in LAYER} == {*FLAWS, *OTHERS} and set(LAYER) <= set(HYPOTHESES)


@pytest.mark.parametrize("fused", [False, True])
def test_right(fused):
    x, w, first, dump = dump_of(fused)
    found = diagnose(dump | plain(x, w, first))
    assert found.verdict == "right" and check_dump(dump | plain(x, w, first)).right and str(found).endswith("RIGHT")
    y = {name: part.astype(np.float32) for name, part in plain(x, w, first).items()}
    assert diagnose(dump | y).headline == "RIGHT within float32 rounding"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("row", FLAWS)
def test_recognised(row, fused):
    if not fused and ("middle" in row or "four" in row):
        fused = True                                     # a flaw of the fused layout only
    x, w, first, dump = dump_of(fused)
    if "eps" in row:
        w["conv1d.weight"] *= 0.01                       # short q and k
    dump |= {f"weight.{name}": y for name, y in w.items()}
    y = plain(x, w, first, **FLAWS[row])
    found = diagnose(dump | y)
    stage = next(one.group for one in LAYER if one.name == row)
    assert found.explanations[0].names == (row,) and found.explanations[0].equals == (), found.headline
    assert found.first_wrong in FIRST[stage].split()
    assert "is right for what it was given" in str(found) or stage in ("output", "projection")
    assert diagnose(dump | dict(y=y["y"]), pairs=False).explanations[0].names == (row,)       # from the output alone


def test_recognised_with_state_and_padding():
    x, w, first, dump = dump_of()
    assert diagnose(dump | plain(x, w, (None, first[1]))).explanations[0].names == ("convolution's state ignored",)
    assert diagnose(dump | plain(x, w, (first[0], None))).explanations[0].names == ("recurrence's state ignored",)
    mask = np.ones((B, T))
    mask[1, :4] = 0
    right = plain(x, w, first, mask=mask)
    assert diagnose(dump | right | dict(mask=mask)).verdict == "right"
    assert diagnose(dump | plain(x, w, first) | dict(mask=mask)).explanations[0].names == ("padding not hidden",)
    x, w, first, dump = dump_of(width=HV * V)
    assert diagnose(dump | plain(x, w, first, out=lambda W: W)).explanations[0].names == ("output weight transposed",)


def test_two_flaws_and_none():
    x, w, first, dump = dump_of()
    found = diagnose(dump | plain(x, w, first, act=lambda x: x, norm=FLAWS["sigmoid gate"]["norm"]))
    assert set(found.explanations[0].names) == {"activation missing", "sigmoid gate"} and found.first_wrong == "conv"
    assert "Wrong even for what it was given: gated, made by the gated norm." in str(found)
    assert diagnose(dump | plain(x, w, first, act=lambda x: x, norm=FLAWS["sigmoid gate"]["norm"]), pairs=False).verdict == "unexplained"
    y = plain(x, w, first)
    y["q"] = y["q"] + 0.1 * np.random.default_rng(0).standard_normal(y["q"].shape)
    found = diagnose(dump | y)
    assert found.verdict == "unexplained" and found.first_wrong == "q" and found.as_dict()["first_wrong"] == "q"
    assert "The first that is wrong is q, made by the norm; before it a, b, conv, final_state.conv, qkv and z are right." in str(found)


def test_other_shapes():
    """Heads joined with channels; channels ahead of tokens, as Transformers keeps them."""
    x, w, first, dump = dump_of()
    y = plain(x, w, first)
    y |= {"z": y["z"].reshape(B, T, -1), "gated": y["gated"].reshape(-1, V), "core": y["core"].reshape(B * T * HV, V),
          "conv": y["conv"].swapaxes(1, 2),
          "final_state.conv": y["final_state.conv"].swapaxes(1, 2)}
    assert diagnose(dump | y | {"state.conv": first[0].swapaxes(1, 2)}).verdict == "right"


@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_next_dense"])
def test_layers_of_transformers(model):
    with np.load(Path(__file__).parent / "golden" / "layers" / f"{model}_gated_deltanet_layer.npz") as z:
        dump = {"x": z["in.hidden_states"], "y": z["out.y"], "opt.key_heads": np.array(2)}
        dump |= {f"weight.{key.removeprefix('in.weight:')}": z[key] for key in z.files if key.startswith("in.weight:")}
    assert diagnose(dump).verdict == "right"             # and no mechanism needs to be named
    dump["weight.norm.weight"] = dump["weight.norm.weight"] - 1
    assert diagnose(dump).explanations[0].names == ("1 + w in the gated norm",)


BROKEN = {
    "no x": (dict(x=None), "x missing"), "no weight": ({"weight.A_log": None}, "weight.A_log missing: gated_deltanet needs"),
    "no heads": ({"opt.key_heads": None}, "opt.key_heads missing"),
    "unknown": (dict(gatd=np.ones(3)), "unknown key 'gatd'.*did you mean gated"),
    "no output": ({name: None for name in ("qkv", "z", "b", "a", "conv", "q", "k", "v", "beta", "g", "core", "gated", "y",
                                                                                                                      "final_state.conv",
                                                                                                                      "final_state.S")},
                  "nothing to compare"),
    "shape": (dict(core=np.ones((B, T, HV, V + 1))), r"core \(2, 9, 6, 6\) must be \(2, 9, 6, 5\)"),
    "weight's shape": ({"weight.dt_bias": np.ones(5)}, r"weight.dt_bias \(5,\) must be \(6,\)"),
    "heads that do not divide": ({"opt.key_heads": np.array(4)}, "must divide"), "NaN": (dict(x=np.full((B, T, C), np.nan)), "x holds NaN"),
    "NaN in a weight": ({"weight.A_log": np.full(HV, np.nan)}, "weight.A_log holds NaN"),
    "integers": (dict(x=np.ones((B, T, C), int)), "x holds int64"),
    "mask": (dict(mask=np.ones((T, B))), "mask must be"), "two numbers": ({"opt.eps": np.ones(2)}, "opt.eps must be one finite number")}


@pytest.mark.parametrize("name", BROKEN)
def test_unusable(name, tmp_path, capsys):
    x, w, first, dump = dump_of()
    change, words = BROKEN[name]
    arrays = {key: y for key, y in (dump | plain(x, w, first) | change).items() if y is not None}
    with pytest.raises(DumpError, match=words) as error:
        diagnose(arrays)
    assert len(str(error.value).splitlines()) == 1
    np.savez(tmp_path / "dump.npz", **arrays)
    assert main(["compare", str(tmp_path / "dump.npz")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
