"""compare says why: right, right within rounding, explained by one or two hypotheses, or unexplained; the search, the text, the
command, other inputs.
"""
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npattn import data
from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.compare import Diagnosis, DumpError, Explanation, assert_matches, check_dump, diagnose, explain
from npattn.compare import search
from npattn.compare.hypotheses import HYPOTHESES, TABLE
from npattn.compare.rounding import rounded
from npattn.models import safetensors

from test_hypotheses import attention, backwards, gradient_dump, inputs, l2, length, recurrence, rule, softmax_inputs

LOW = Path(__file__).parent / "golden" / "low_precision"


def wrong(name="gated_delta_rule", **how):
    """A dump with a scale of 1."""
    x = inputs(name, **how)
    return rule(name, x, recurrence(name, x, scale=1.0))


# --- verdicts ----------------------------------------------------------------------------------------------------

def test_right():
    x = inputs("gated_delta_rule")
    found = diagnose(rule("gated_delta_rule", x, recurrence("gated_delta_rule", x)))
    assert isinstance(found,
        Diagnosis) and found.verdict == "right" and found.right and str(found).endswith("\nRIGHT") and found.precision == "float64"
    assert "Not tested, as it takes: " in str(found)
    assert "l2 norm missing" not in found.blind and "state not carried across chunks of 64" in found.blind
    for name in data.provenance():
        assert diagnose(data.dump(name)).right


def test_nothing_is_blind_that_is_shown():
    x = inputs("gated_delta_rule", T=140)
    assert diagnose(rule("gated_delta_rule", x, recurrence("gated_delta_rule", x))).blind == ()
    x = inputs("gated_delta_rule", T=140, H=1, V=4, state=False)
    blind = diagnose({key: y for key, y in rule("gated_delta_rule", x, recurrence("gated_delta_rule", x)).items()
                      if key != "final_state"}).blind
    assert {"scale from the value width", "key heads tiled", "initial state ignored", "final state missing",
            "final state transposed"} <= set(blind)
    assert not {"gate ignored", "scale missing", "state not carried across chunks of 128", "l2 norm superfluous",
                "q and k swapped"} & set(blind)


@pytest.mark.parametrize("name, to", [("bfloat16", lambda x: rounded(x, "bfloat16")), ("float16", lambda x: x.astype(np.float16)),
                                      ("float32", lambda x: x.astype(np.float32))])
@pytest.mark.parametrize("mechanism", ["gated_delta_rule", "gla"])
def test_right_within_rounding(name, to, mechanism):
    x = inputs(mechanism)
    o, final = recurrence(mechanism, x)
    found = diagnose(rule(mechanism, x, (to(o), to(final))))
    assert found.verdict == "right within rounding" and found.precision == name and str(found).endswith(f"RIGHT within {name} rounding")


@pytest.mark.parametrize("noise", [1e-7, 1e-4, 1e-2, 1])
@pytest.mark.parametrize("mechanism", ["gated_delta_rule", "linear_attention"])
@pytest.mark.parametrize("stored", [np.float64, np.float32])
def test_noise_is_not_explained(noise, mechanism, stored):
    x = inputs(mechanism, T=40)
    o, final = recurrence(mechanism, x)
    noise = noise * 5 if stored == np.float32 else noise
    o = (o + noise * np.random.default_rng(0).standard_normal(o.shape)).astype(stored)
    found = diagnose(rule(mechanism, x, (o, final.astype(stored))))
    if noise > 1e-5 or stored == np.float64:
        assert found.verdict == "unexplained" and found.explanations == () and found.partial == () and found.tried > 20
        assert str(found).endswith("UNEXPLAINED") and found.picture
    else:
        assert found.verdict == "right within rounding"


def test_pairs():
    x = inputs("gated_delta_rule")
    tile = lambda h, H, G: h % H
    found = diagnose(rule("gated_delta_rule", x, recurrence("gated_delta_rule", x, scale=1.0, key_head=tile)))
    assert set(found.explanations[0].names) == {"scale missing", "key heads tiled"} and found.explanations[0].error < 1e-12
    assert "EXPLAINED: scale missing + key heads tiled" in str(found) and len(found.explanations) == 1
    o = recurrence("gated_delta_rule", x, order="predict decay write read")
    found = diagnose(rule("gated_delta_rule", x, o, use_qk_l2norm=True))
    assert set(found.explanations[0].names) == {"predict before decay", "l2 norm missing"}
    assert diagnose(rule("gated_delta_rule", x, o, use_qk_l2norm=True), pairs=False).verdict == "unexplained"


def test_pairs_that_explode():
    """Keys as long as sqrt(K), not normalised on one of the two sides: what is wrong first is long forgotten in the largest number."""
    x = inputs("gated_delta_rule", T=60, K=16)
    x |= dict(k=2 * x["k"], g=0.1 * x["g"])
    tile, units = lambda h, H, G: h % H, (l2, l2)
    names = lambda how: set(diagnose(rule("gated_delta_rule", x, recurrence("gated_delta_rule", x, **how),
                                          use_qk_l2norm="unit" not in how)).explanations[0].names)
    assert np.abs(recurrence("gated_delta_rule", x)[0]).max() > 1e9
    assert names(dict(order="predict decay write read")) == {"l2 norm missing", "predict before decay"}
    for how, name in (dict(key_head=tile), "key heads tiled"), (dict(scale=1.0), "scale missing"):
        assert names(how) == {"l2 norm missing", name}
        assert names(dict(how, unit=units)) == {"l2 norm superfluous", name}


def test_single_and_pairs_without_a_causal_mask():
    """Where the first token sees the last, all keys are needed to try anything."""
    x, tile = softmax_inputs(T=40), lambda h, H, G: h % H
    every = dict(see=lambda i, j: True)
    dump = lambda **how: dict(x, mechanism="softmax_attention", o=attention(x, **every, **how)) | {"opt.causal": False}
    assert diagnose(dump()).verdict == "right"
    assert diagnose(dump(scale=1.0)).explanations[0].names == ("scale missing",)
    assert diagnose(dump(key_head=tile)).explanations[0].names == ("key heads tiled",)
    assert set(diagnose(dump(scale=1.0, key_head=tile)).explanations[0].names) == {"scale missing", "key heads tiled"}
    block = dict(dump(scale=1.0), mechanism="block_topk_attention") | {"opt.block_size": 8, "opt.topk": 5}
    del block["opt.causal"]                              # its default is false; all blocks are chosen
    assert diagnose(block).explanations[0].names == ("scale missing",)


@pytest.mark.parametrize("mechanism", ["kda", "simple_gla"])
def test_pairs_that_begin_apart(mechanism):
    """One difference from the first token on, the other from token 64, or in the final state, or in a gradient."""
    x = inputs(mechanism, T=140, H=1, G=2)
    names = lambda dump: set(diagnose(dump).explanations[0].names)
    fresh = dict(scale=1.0, before=lambda t, S: 0 * S if t and t % 64 == 0 else S)
    assert names(rule(mechanism, x, recurrence(mechanism, x, **fresh))) == {"scale missing", "state not carried across chunks of 64"}
    o, final = recurrence(mechanism, x, scale=1.0)
    assert names(rule(mechanism, x, (o, 0 * final))) == {"scale missing", "final state missing"}
    o, final = recurrence(mechanism, x, before=fresh["before"])
    assert names(rule(mechanism, x, (o, 0 * final))) == {"state not carried across chunks of 64", "final state missing"}
    dump = gradient_dump(mechanism)
    end = (dump["final_state"] * dump["dfinal_state"]).sum((2, 3) if mechanism == "simple_gla" else 3)[:, None]
    assert names(dump | dict(dg=dump["dg"] - end, dq=3 * dump["dq"])) == {"final state's part missing in dg", "dq off by a factor"}


def test_gradients_follow_a_difference_of_the_outputs():
    """The gradients of what was computed, not of what was meant; and gradients alone, without outputs."""
    x = inputs("gated_delta_rule")
    dump = gradient_dump("gated_delta_rule")
    dump |= dict(zip(("o", "final_state"), recurrence("gated_delta_rule", dict(x, beta=x["beta"] / 2))))
    dump |= backwards("gated_delta_rule", dict(x, beta=x["beta"] / 2), dump["do"], dump["dfinal_state"])
    dump["dbeta"] = dump["dbeta"] / 2
    assert diagnose(dump).explanations[0].names == ("beta halved",)
    only = {key: y for key, y in dump.items() if key not in ("o", "final_state")}
    assert diagnose(only).explanations[0].names == ("beta halved",)
    assert diagnose(dump | dict(dbeta=2 * dump["dbeta"])).explanations[0].names in {("beta halved", "dbeta off by a factor")}


@pytest.mark.parametrize("name", ["gated_delta_rule", "linear_attention"])
def test_the_gradient_of_a_first_state_that_was_not_given(name):
    x, rng = inputs(name), np.random.default_rng(2)
    x["state"] = 0 * x["state"]
    do, dS = rng.standard_normal(x["v"].shape), rng.standard_normal(x["state"].shape)
    dump = rule(name, x, recurrence(name, x)) | dict(do=do, dfinal_state=dS, **backwards(name, x, do, dS))
    del dump["state"]
    assert diagnose(dump).verdict == "right"
    assert diagnose(dump | dict(dv=2 * dump["dv"])).explanations[0].names == ("dv off by a factor",)
    assert diagnose(dump | backwards(name, x, do, 0 * dS)).explanations[0].names == ("dfinal_state ignored",)


def test_what_explains_some_of_it():
    dump = wrong()
    noise = np.random.default_rng(0).standard_normal(dump["final_state"].shape)
    found = diagnose(dump | dict(final_state=dump["final_state"] + noise))
    assert found.verdict == "unexplained" and found.partial[0].names == ("scale missing",)
    assert found.partial[0].leaves == ("final_state",) and set(found.partial[0].errors) == {"o"}
    assert "scale missing (explains o, not final_state)" in str(found)


def test_a_fit_is_ten_times_better_than_what_is_right():
    """A difference that float32 hardly shows is no explanation: eps in a float32 dump."""
    x = inputs("gated_delta_rule", short=0.02)
    outside = (lambda y: y / (length(y) + 1e-6),) * 2
    o, final = recurrence("gated_delta_rule", x, unit=outside)
    dump = rule("gated_delta_rule", x, (o, final), use_qk_l2norm=True)
    assert diagnose(dump).explanations[0].names == ("eps outside the root",)
    level = max(row.error.relative for row in check_dump(dump).rows)
    noise = 1 + 0.2 * level * np.random.default_rng(0).standard_normal(o.shape)
    assert diagnose(dump | dict(o=o * noise)).verdict == "unexplained"


def test_two_that_inputs_do_not_tell_apart():
    x = inputs("linear_attention", K=4, V=1)             # V ** -0.5 is 1: no scale at all
    dump = rule("linear_attention", x, recurrence("linear_attention", x, scale=1.0))
    first, second = diagnose(dump).explanations
    assert {first.names, second.names} == {("scale missing",), ("scale from the value width",)} and first.equals == (second.names,)
    text = str(diagnose(dump))
    assert "These inputs do not tell it from: scale from the value width." in text
    assert "To tell them apart, compare with: a scale other than 1; K and V that differ." in text


def test_a_mechanism_that_is_not_named():
    x = inputs("gated_delta_rule")
    o = recurrence("gated_delta_rule", x, order="predict decay write read")
    dump = {key: y for key, y in rule("", x, o).items() if key != "mechanism"}
    found = diagnose(dump)
    assert found.verdict == "right" and found.report.mechanism == "gated_delta_rule_predict_first" and found.others == (("gated_delta_rule",
                                                                                                                         "explained"),)
    o = recurrence("gated_delta_rule", x, scale=1.0)
    found = diagnose(dump | dict(zip(("o", "final_state"), o)))
    assert found.report.mechanism == "gated_delta_rule" and found.explanations[0].names == ("scale missing",)
    assert "Tried as well: gated_delta_rule_predict_first: " in str(found)
    with pytest.raises(DumpError, match="does not say its mechanism"):
        diagnose(dict(dump, g=None, beta=None, q=None))


def test_options_belong_to_what_is_right():
    x = softmax_inputs()
    dump = dict(x, mechanism="sliding_window_attention", o=attention(x, lambda i, j: i - 5 < j <= i, scale=0.3),
                **{"opt.window": 5, "opt.scale": 0.3})
    assert diagnose(dump).verdict == "right"
    assert diagnose(dict(dump, o=attention(x, lambda i, j: i - 5 < j <= i))).explanations[0].names == ("given scale ignored",)


# --- low precision -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, precision, words", [("tf32", "tf32", "matrix products of tf32 operands"),
                                                    ("bfloat16", "bfloat16", "matrix products of bfloat16 operands"),
                                                    ("state", "bfloat16", "state kept in bfloat16"), ("flash", "bfloat16", "")])
def test_what_tensor_cores_returned(name, precision, words):
    found = diagnose(LOW / f"{name}.npz")
    assert found.verdict == "right within rounding" and found.precision == precision and found.rounding == words
    assert all(row.right for row in found.report.rows) and words in str(found)
    assert str(found).splitlines()[-1].startswith(f"RIGHT within {precision} rounding")


def test_a_convention_beneath_tensor_cores():
    found = diagnose(LOW / "no_scale.npz")
    first = found.explanations[0]
    assert first.names == ("scale missing",) and first.rounding == "matrix products of tf32 operands" and 1e-4 < first.error < 1e-3
    dump = dict(np.load(LOW / "tf32.npz"))
    size = 5e-4 * np.abs(dump["o"]).max()                # as much noise as TF32 makes is no rounding
    x = {key: dump[key].astype(np.float64) for key in ("q", "k", "v", "g", "beta", "state")}
    x = {key: y if key == "state" else y.swapaxes(1, 2) for key, y in x.items()}
    exact, final = recurrence("gated_delta_rule", x)
    noisy = exact + size * np.random.default_rng(1).uniform(-1, 1, exact.shape)
    found = diagnose(dump | dict(o=noisy.swapaxes(1, 2).astype(np.float32), final_state=final.astype(np.float32)))
    assert found.verdict == "unexplained"


@pytest.mark.parametrize("arrays, words", [(("q", "k", "v"), "q, k and v rounded to bfloat16"), (("beta",), "beta rounded to bfloat16")])
def test_rounded_inputs(arrays, words):
    x = inputs("gated_delta_rule", T=40)
    low = x | {name: rounded(x[name], "bfloat16") for name in arrays}
    found = diagnose(rule("gated_delta_rule", x, recurrence("gated_delta_rule", low)))
    assert found.verdict == "right within rounding" and found.rounding == words and found.precision == "bfloat16"


def test_simulation(tmp_path, capsys):
    x = inputs("gated_delta_rule", T=64, K=16, V=16, H=1, G=1)
    o, final = recurrence("gated_delta_rule", x)
    path = tmp_path / "dump.npz"
    np.savez(path, **rule("gated_delta_rule", x, (o, rounded(final, "bfloat16"))))
    assert main(["compare", str(path), "--simulate", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["T"], row["low"]): row["errors"]["o"] for row in found["simulated"]}
    assert {T for T, _ in rows} == {64, 128, 256, 512} and len(rows) == 12
    assert all(1e-3 < e < 3e-2 for e in rows.values()) and found["yours"]["o"] < 1e-12 and 1e-4 < found["yours"]["final_state"] < 4e-3
    for precision, most in (("tf32", 3e-3), ("float16", 3e-3)):
        assert main(["compare", str(path), "--simulate", precision]) == 0
        text = capsys.readouterr().out
        figures = [float(figure) for figure in re.findall(r"\d\.\de-\d\d", text)]
        assert text.startswith(f"gated_delta_rule in {precision}") and "the dump itself" in text and 1e-5 < max(figures[:-2]) < most


def test_simulation_of_attention(tmp_path, capsys):
    x = softmax_inputs(T=24)
    np.savez(tmp_path / "dump.npz", **dict(x, mechanism="softmax_attention", o=attention(x)))
    assert main(["compare", str(tmp_path / "dump.npz"), "--simulate", "bfloat16"]) == 0
    text = capsys.readouterr().out
    assert "state" not in text.replace("dump itself", "") and 1e-3 < float(re.search(r"24  inputs and outputs +(\S+)", text)[1]) < 2e-2


# --- the picture in words ------------------------------------------------------------------------------------------

def said(dump):
    found = diagnose(dump, pairs=False)
    assert found.verdict == "unexplained"
    return " ".join(found.picture)


def test_where_it_goes_wrong():
    x = inputs("gated_delta_rule", T=140, H=2, G=2)
    o, final = recurrence("gated_delta_rule", x)
    noise = np.random.default_rng(0).uniform(0.5, 1, o.shape)
    dump = rule("gated_delta_rule", x, (o, final))
    late = np.arange(140)[:, None, None]
    assert "o is right up to token 63 and wrong from token 64 on: a multiple of 64" in said(dump | dict(o=o + noise * (late >= 64)))
    assert "o is right up to token 70 and wrong from token 71 on." in said(dump | dict(o=o + noise * (late >= 71)))
    head = said(dump | dict(o=o + noise * (np.arange(4)[:, None] == 3)))
    assert "o is wrong in head 3 only." in head
    assert "o is wrong in columns 0 to 1 only." in said(dump | dict(o=o + noise * (np.arange(3) < 2)))
    assert "o is wrong in tokens 3 to 5, 9 only." in said(dump | dict(o=o + noise * np.isin(late, (3, 4, 5, 9))))
    assert "The error of o grows with the position, from" in said(dump | dict(o=o * (1 + noise * 1e-6 * 1.05 ** late)))
    assert "Only the final state is wrong: every output is right" in said(dump | dict(final_state=final * 1.5 + 1))
    assert "final_state is everywhere 1.5 times the right one." in said(dump | dict(final_state=final * 1.5))
    assert "o is everywhere 0.37 times the right one." in said(dump | dict(o=0.37 * o))
    assert "o holds the right numbers in another order" in said(dump | dict(o=o[:, :, ::-1]))
    assert "o is zero everywhere." in said(dump | dict(o=0 * o))
    assert "o is unrelated to the right one" in said(dump | dict(o=noise - 0.75))
    broken = o.copy()
    broken[0, 100:, 1] = np.nan
    assert "o is NaN or infinite in 120 places" in said(dump | dict(o=broken)) and "wrong in head 1 only" in said(dump | dict(o=broken))


def test_which_gradients_go_wrong():
    dump = gradient_dump("gated_delta_rule")
    text = said(dump | dict(dk=dump["dk"] + 1))
    assert "All outputs are right; of the gradients dk is wrong, dbeta, dg, dq, dstate and dv right." in text
    lost = {key: np.where(np.arange(dump[key].size).reshape(dump[key].shape) == 5, np.nan, dump[key]) for key in ("dq", "dk")}
    text = said(dump | lost)
    assert "dk and dq hold NaN or infinity, dbeta, dg, dstate and dv do not: only what passes through the gates overflows." in text


def test_what_holds_for_the_last_tokens_only():
    """In bfloat16, where any two lots of many numbers agree when sorted."""
    x = inputs("gla", T=128, K=8, V=8)
    o, final = (rounded(y, "bfloat16") for y in recurrence("gla", x))
    late, dump = np.arange(128)[:, None, None], rule("gla", x, (o, final))
    for factor, first in (-1, 64), (1.5, 120):
        text = said(dump | dict(o=np.where(late >= first, rounded(factor * o, "bfloat16"), o)))
        found = re.search(rf"o is from token {first} on (\S+) times the right one", text)
        assert found and abs(float(found[1]) - factor) < 1e-3
        assert "another order" not in text
    flipped = np.where((late >= 64) & (np.random.default_rng(0).random(o.shape) < 0.5), -o, o)
    text = said(dump | dict(o=flipped))
    assert "another order" not in text and "from token 64 on" in text
    turned = np.where(late >= 64, o[..., ::-1], o)
    assert "o holds the right numbers in another order from token 64 on" in said(dump | dict(o=turned))


@pytest.mark.parametrize("value, words", [(np.nan, "{} is NaN or infinite in {} places"), (np.inf, "{} is NaN or infinite in {} places"),
                                          (0, "{} is zero everywhere: it is missing.")])
def test_no_factor_makes_a_gradient_zero_or_nan(value, words):
    dump = gradient_dump("gated_delta_rule")
    for name in "dq", "dg":
        text = said(dump | {name: np.full_like(dump[name], value)})
        assert words.format(name, dump[name].size) in text
        assert (f"{name} holds NaN or infinity, no other gradient does." in text) == (value != 0)
    every = {name: np.full_like(dump[name], value) for name in ("dq", "dk", "dv", "dg", "dbeta", "dstate")}
    assert diagnose(dump | every, pairs=False).explanations == ()


def test_the_factor_is_printed():
    dump = gradient_dump("gated_delta_rule")
    assert "dg is everywhere 0.693147 times the right one." in str(diagnose(dump | dict(dg=np.log(2) * dump["dg"])))
    all_of = {name: 0.25 * dump[name] for name in ("dq", "dk", "dv", "dg", "dbeta", "dstate")}
    assert "All gradients are 0.25 times the right ones." in str(diagnose(dump | all_of))
    assert "dq is everywhere 0.25 times the right one." in str(diagnose(dump | dict(dq=all_of["dq"], dv=2 * dump["dv"])))


def test_a_scale_of_zero_and_heads_of_no_width():
    x = inputs("gated_delta_rule")
    o, final = recurrence("gated_delta_rule", x)
    dump = rule("gated_delta_rule", x, (o, final), scale=0.0)
    assert diagnose(dump).explanations[0].names == ("given scale ignored",)
    assert diagnose(dump | dict(o=0 * o)).verdict == "right"
    empty = {name: y for name, y in dump.items() if "state" not in name and name != "opt.scale"} | {n: x[n][..., :0] for n in "qk"}
    assert diagnose(empty).verdict == "unexplained" and diagnose(empty | dict(o=0 * o)).verdict == "right"
    none = dump | {name: dump[name][..., :0] for name in ("v", "o", "state", "final_state")}
    assert diagnose(none).right


def test_no_rows_and_a_word_for_a_truth_value():
    dump = wrong()
    with pytest.raises(DumpError, match="nothing to compare: no batch row"):
        diagnose({key: y[:0] if isinstance(y, np.ndarray) else y for key, y in dump.items()})
    for key, name in ("opt.use_qk_l2norm", "gated_delta_rule"), ("opt.causal", "softmax_attention"):
        x = dump if name == "gated_delta_rule" else dict(softmax_inputs(), mechanism=name)
        with pytest.raises(DumpError, match=f"{key} must be true or false, not 'no'"):
            diagnose(dict(x, o=np.zeros((1, 20, 4, 3))) | {key: "no"})


# --- speed -------------------------------------------------------------------------------------------------------

def test_little_is_computed_as_a_whole(monkeypatch):
    """Most rows are left on the part that is tried first, in a large dump too."""
    x = inputs("gated_delta_rule", T=128, H=2, G=1, K=32, V=32, B=2)
    o, final = recurrence("gated_delta_rule", x)
    dump = rule("gated_delta_rule", x, (o + 0.1 * np.random.default_rng(0).standard_normal(o.shape), final))
    counts = []
    whole = search.Search.whole
    monkeypatch.setattr(search.Search, "whole", lambda self, rows: counts.append(rows) or whole(self, rows))
    found = diagnose(dump)
    assert found.tried > 1500 and found.complete and len(counts) < 20


def test_the_search_keeps_to_its_time():
    x = inputs("gated_delta_rule")
    o, final = recurrence("gated_delta_rule", x)
    found = diagnose(rule("gated_delta_rule", x, (o + np.random.default_rng(0).standard_normal(o.shape), final)), seconds=0)
    assert not found.complete and found.verdict == "unexplained" and "The search stopped after" in str(found)


# --- from a test-suite, from files -----------------------------------------------------------------------------------

def split(dump):
    return {key: y for key, y in dump.items() if key not in ("o", "final_state", "mechanism")}, {key: dump[key]
                                                                                                 for key in ("o", "final_state")}


def test_explain_and_assert_matches():
    dump = wrong()
    x, y = split(dump)
    found = explain("gated_delta_rule", x, y)
    assert isinstance(found, list) and isinstance(found[0], Explanation) and found[0].names == ("scale missing",) and found[0].error < 1e-12
    assert explain(None, x, y)[0].names == ("scale missing",) and explain(None, dump)[0].names == ("scale missing",)
    assert explain("gated_delta_rule", x, y, scale=1.0) == [] and explain("gated_delta_rule", x | {"opt.scale": 1.0}, y) == []
    assert_matches("gated_delta_rule", x, y, scale=1.0)
    with pytest.raises(AssertionError,
        match="(?s)o +WRONG.*scale missing\n  q is not multiplied by the scale.\n    -> Multiply q.*EXPLAINED: scale missing"):
        assert_matches("gated_delta_rule", x, y)
    first = {key: z if "state" in key else z.swapaxes(1, 2) for key, z in (x | y).items()}
    assert explain("gated_delta_rule", first, layout="bhtd")[0].names == ("scale missing",)


def test_arrays_of_other_libraries():
    dump = wrong()

    class DLPack:
        """No __array__: only the exchange protocol."""
        def __init__(self, x): self.x = x
        def __dlpack__(self, **options): return self.x.__dlpack__(**options)
        def __dlpack_device__(self): return self.x.__dlpack_device__()

    class Torch:
        """A tensor that asks for detach, and has a type that NumPy does not know."""
        dtype = "torch.bfloat16"
        def __init__(self, x, attached=True): self.x, self.attached = x, attached
        def detach(self): return Torch(self.x, False)
        def cpu(self): return self
        def float(self): return rounded(self.x, "bfloat16").astype(np.float32)

    class Jax:
        dtype = "bfloat16"
        def __init__(self, x): self.x = x
        def astype(self, kind): return rounded(self.x, "bfloat16").astype(kind)

    assert diagnose(dump | dict(q=DLPack(dump["q"]), v=DLPack(dump["v"]))).explanations[0].names == ("scale missing",)
    low = {key: rounded(dump[key], "bfloat16") for key in ("q", "k")}
    for kind in Torch, Jax:
        found = diagnose(dump | {key: kind(dump[key]) for key in low} | dict(zip(("o", "final_state"),
                                                                                 recurrence("gated_delta_rule",
                                                                                            inputs("gated_delta_rule") | low))))
        assert found.verdict == "right"


def test_files(tmp_path):
    dump = wrong()
    arrays = {key: np.asarray(y) for key, y in dump.items()}
    for name, y in arrays.items():
        (tmp_path / "folder").mkdir(exist_ok=True)
        np.save(tmp_path / "folder" / f"{name}.npy", y)
    assert diagnose(tmp_path / "folder").explanations[0].names == ("scale missing",)
    about = {"mechanism": "gated_delta_rule", "opt.use_qk_l2norm": "false", "format": "np"}
    tensors = {key: y for key, y in arrays.items() if key != "mechanism"}
    safetensors.save(tmp_path / "dump.safetensors", tensors, about)
    assert diagnose(str(tmp_path / "dump.safetensors")).explanations[0].names == ("scale missing",)
    safetensors.save(tmp_path / "dump.safetensors", tensors, about | {"opt.scale": "1.0"})
    assert diagnose(tmp_path / "dump.safetensors").verdict == "right"
    safetensors.save(tmp_path / "bare.safetensors", tensors)
    assert diagnose(tmp_path / "bare.safetensors", "gated_delta_rule").explanations[0].names == ("scale missing",)
    file = io.BytesIO()
    np.savez(file, **arrays)
    assert diagnose(io.BytesIO(file.getvalue())).explanations[0].names == ("scale missing",)


# --- the command ---------------------------------------------------------------------------------------------------

def run(capsys, *argv):
    status = main(argv)
    return status, *capsys.readouterr()


def test_command(tmp_path, capsys):
    dump, path = wrong(), str(tmp_path / "dump.npz")
    np.savez(path, **dump)
    status, out, err = run(capsys, "compare", path)
    assert (status, err) == (1, "") and out.endswith("EXPLAINED: scale missing\n") and "    -> Multiply q by the scale" in out
    status, out, _ = run(capsys, "compare", path, "--json")
    found = json.loads(out)
    assert status == 1 and found["verdict"] == "explained" and found["names"] == ["scale missing"] and found["error"] < 1e-12
    assert found["explanations"][0]["remedies"] and found["outputs"][0]["name"] == "o" and found["mechanism"] == "gated_delta_rule"
    x = inputs("gated_delta_rule")
    o, final = recurrence("gated_delta_rule", x)
    np.savez(path, **rule("gated_delta_rule", x, (o.astype(np.float32), final.astype(np.float32))))
    status, out, _ = run(capsys, "compare", path, "--json")
    assert status == 0 and json.loads(out)["verdict"] == "right within rounding" and json.loads(out)["precision"] == "float32"
    np.savez(path, **rule("gated_delta_rule", x, (o, final)))
    assert run(capsys, "compare", path)[0] == 0
    np.savez(path, **rule("gated_delta_rule", x, (o + np.random.default_rng(0).standard_normal(o.shape), final)))
    status, out, _ = run(capsys, "compare", path, "--no-pairs", "--json")
    assert status == 1 and json.loads(out)["verdict"] == "unexplained" and json.loads(out)["names"] == [] and json.loads(out)["picture"]


@pytest.mark.parametrize("content, words", [
    ({}, "is a folder without .npy files"), ({"q.npy": b"no array"}, "q cannot be read"), ({"d.safetensors": b"\x05"}, "cannot be read"),
    ({"d.safetensors": None}, "there is no such file"),
    ({"d.safetensors": (13).to_bytes(8, "little") + b'{"a":{"x":1}}'}, "malformed"),
    ({"d.safetensors": (41).to_bytes(8, "little") + b'{"__metadata__":{"opt.scale":"one half"}}'},
     "opt.scale in the metadata must be a number")])
def test_files_that_cannot_be_used(content, words, tmp_path, capsys):
    for name, y in content.items():
        if y is not None:
            (tmp_path / name).write_bytes(y)
    path = tmp_path / "d.safetensors" if "d.safetensors" in content else tmp_path
    for argv in (["compare", str(path)], ["compare", str(path), "--simulate", "tf32"]):
        status, out, err = run(capsys, *argv)
        assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_a_factor_where_the_log_is_meant():
    x = inputs("gated_delta_rule")
    with pytest.raises(DumpError, match="positive in 80 of 80 places; all of it is in 0 ... 1: .*give the logarithm"):
        diagnose(rule("gated_delta_rule", dict(x, g=np.exp(x["g"])), recurrence("gated_delta_rule", x)))


def test_the_progress_line(tmp_path, capsys, monkeypatch):
    """On a terminal only, and gone in the end."""
    x = inputs("gated_delta_rule")
    o, final = recurrence("gated_delta_rule", x)
    np.savez(tmp_path / "dump.npz", **rule("gated_delta_rule", x, (o + np.random.default_rng(0).standard_normal(o.shape), final)))
    assert run(capsys, "compare", str(tmp_path / "dump.npz"))[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("npattn.compare.command.time", SimpleNamespace(monotonic=iter(range(10 ** 6)).__next__))
    status, out, err = run(capsys, "compare", str(tmp_path / "dump.npz"))
    assert status == 1 and re.match(r"\r0 of \d+ pairs of hypotheses\r1 of", err) and err.endswith("\r\033[K") and out.endswith("UNEXPLAINED\n")


def test_pitfalls(capsys):
    status, out, _ = run(capsys, "pitfalls")
    assert status == 0 and all(theme in out for theme in TABLE) and "state not carried across chunks of 64, or of 16, 32, 128" in out
    assert all(row.says in out and row.remedy in out for row in HYPOTHESES if not re.search(r"\b(16|32|128)\b", row.name))
    status, out, _ = run(capsys, "pitfalls", "--json")
    found = json.loads(out)
    assert status == 0 and [row["name"] for row in found] == [row.name for row in HYPOTHESES] and all(row["mechanisms"] for row in found)


# --- the table -----------------------------------------------------------------------------------------------------

def test_the_table():
    assert len({row.name for row in HYPOTHESES}) == len(HYPOTHESES) > 200
    for row in HYPOTHESES:
        assert row.says.endswith(".") and row.remedy.endswith(".") and row.shows and not row.shows.endswith("."), row.name
        assert row.concerns("gated_deltanet") or any(row.concerns(mechanism) for mechanism in CATALOGUE.values())


# --- little to go by -------------------------------------------------------------------------------------------------

def test_few_numbers_are_not_explained_by_chance():
    """One output that is off, of bfloat16: among all hypotheses there may well be one that hits it."""
    one = inputs("gated_delta_rule", T=1, H=1, G=1, K=2, V=1)
    dump = rule("gated_delta_rule", one, recurrence("gated_delta_rule", one, scale=1.0))
    assert diagnose(dump).explanations[0].names == ("scale missing",)        # nine digits are no chance
    del dump["final_state"]
    for o in np.linspace(-2, 2, 41):
        o = rounded(np.full((1, 1, 1, 1), o), "bfloat16")
        assert diagnose(dump | dict(o=o.astype(np.float16)), pairs=False).explanations == ()


def test_numbers_below_the_smallest_of_the_type():
    """A gradient of 1e-7 in float16, which has steps of 6e-8."""
    dump = gradient_dump("linear_attention")
    dump |= {key: 1e-7 * dump[key] for key in ("do", "dfinal_state", "dq", "dk", "dv", "dstate")}
    found = diagnose(dump | {key: dump[key].astype(np.float16) for key in ("o", "final_state", "dq", "dk", "dv", "dstate")})
    assert found.verdict == "right within rounding" and found.precision == "float16"
