"""Costs: the formulas of the catalogue against operations counted in the forms, bytes against arrays, and the command."""
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from npattn import cost, gated_delta_rule
from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.core.states import leaves
from npattn.proof.counting import count

ROWS = [row for row in CATALOGUE.values() if row.cost]
# Sizes at which one product of two sizes stands out: K V, C K, C V, C C, and the same with T for C.
CORNERS = [dict(K=64, V=64, C=16), dict(K=128, V=4, C=128), dict(K=4, V=128, C=128), dict(K=4, V=4, C=256)]


def counted(row, form, sizes):
    x = {name: n for name, n in sizes.items() if name in "TKVGCB"}
    return cost.counted(row, form, **x, **dict(topk=10 ** 6) if row.name == "block_topk_attention" else {})


def settings(row, form):
    for G, corner in product((1, 3), CORNERS):
        T = 4 if row.recurrent and form == "loop" else corner["C"]           # one chunk; a loop does the same for every token
        if not row.recurrent and form == "chunk":
            corner, T = dict(corner, C=max(corner["C"] // 4, 1)), corner["C"]
        yield dict(corner, T=T, G=G, B=2)


def missing(row, form, sizes, found, text):
    """What the formula leaves over of the count, relative to what it may: terms in one size only, of which halves per channel have log2 C each."""
    more = found / sizes["T"] - cost.evaluate(text, sizes)
    reach = dict(loop=0 if row.recurrent else sizes["T"], matrix=sizes["T"], chunk=sizes["C"])[form]
    return float(more) / (sizes["G"] * ((24 if row.axes.get("g") == "T K" else 8) * (sizes["K"] + sizes["V"]) + 4 * reach))


@pytest.mark.parametrize("form", ["loop", "matrix", "chunk"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_formulas_are_what_is_counted(row, form):
    found = [(sizes, counted(row, form, sizes).multiplications) for sizes in settings(row, form)]
    terms = cost.formula(row, form).split(" + ")
    for sizes, n in found:
        assert -1 < missing(row, form, sizes, n, " + ".join(terms)) < 1, sizes
    for i in range(len(terms)):                                              # and no term could be left out
        assert any(missing(row, form, sizes, n, " + ".join(terms[:i] + terms[i + 1:])) > 1 for sizes, n in found), terms[i]


@pytest.mark.parametrize("form", ["loop", "matrix", "chunk"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_exponentials(row, form):
    T, sizes = 12, dict(T=12, K=5, V=3, C=4, G=2, B=2)
    found, gates = counted(row, form, sizes).exponentials, {"simple_gla": T, "gla": T * 5, "kda": T * 5, "gated_delta_rule": T, "gated_delta_rule_predict_first": T}
    scores = {"loop": T * (T + 1) // 2, "matrix": T * T, "chunk": 6 * 16}                    # 6 tiles of 4 by 4 on or below the diagonal
    if row.recurrent:
        assert found == gates.get(row.name, 0) == cost.exponentials(row, form, sizes) * T
    elif row.name == "softmax_attention":
        assert found == 2 * scores[form] + (2 * 6 * 4 if form == "chunk" else 0)             # and one for each row of a tile: what came before fades
        assert cost.exponentials(row, form, sizes) * T == 2 * (T * T / 2 if form == "loop" else scores[form])


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.name)
def test_bytes_are_those_of_the_arrays(row):
    sizes = dict(T=7, K=5, V=3, G=2)
    x = row.arguments(np.random.default_rng(0), 1, (1,), K=5, V=3, n=7, dtype=np.float32)
    x["q"] = np.repeat(x["q"], 2, axis=0)
    o, after = row.module.loop(**x, **row.options)
    bytes_of = lambda *arrays: sum(y.nbytes for y in arrays)
    assert 4 * cost.kept_numbers(row, sizes) == bytes_of(*leaves(x["state"]))
    written = bytes_of(*leaves(after)) - (0 if row.recurrent else bytes_of(*leaves(x["state"])))
    assert 4 * cost.moved_numbers(row, sizes) == bytes_of(*(y for name, y in x.items() if name != "state"), *leaves(x["state"]), o) + written


def test_a_mechanism_without_formulas_is_counted():
    row, sizes = CATALOGUE["gated_delta_rule"], dict(T=256, K=64, V=64, C=64, B=64, G=1)
    bare = replace(row, cost={})
    for form in "loop", "chunk":
        assert 1 < cost.multiplications(bare, form, sizes) / cost.multiplications(row, form, sizes) < 1.05
    assert cost.multiplications(bare, "matrix", sizes) is None


def test_counting_by_hand():
    a, b = np.ones((2, 3)), np.ones((3, 5))
    tally = lambda form, *x: count(form, *x)[:4]
    assert tally(lambda a, b: a @ b, a, b) == (30, 20, 0, 0)
    assert tally(lambda a: a * a + a - 1, a) == (6, 12, 0, 0)
    assert tally(lambda a: np.exp(a) / 2, a) == (0, 0, 6, 6)
    assert tally(lambda a: a.sum(), a) == (0, 5, 0, 0)
    assert tally(lambda a: np.cumsum(a, -1), a) == (0, 4, 0, 0)
    assert tally(lambda a: a.prod(-1), a) == (4, 0, 0, 0)
    assert tally(lambda a: np.tril(a).mT * np.concatenate([a, a])[:2].mT, a) == (6, 0, 0, 0)
    assert tally(lambda a: np.where(a > 0, -a, np.maximum(a, 2)).reshape(-1)[None], a) == (0, 0, 0, 0)

    def in_place(a):
        a = a + 0
        a *= 2
        np.exp(a, out=a)
        z = np.zeros_like(a)
        z[..., :1] -= a[..., :1]
    assert tally(in_place, a) == (6, 8, 0, 6)
    assert count(lambda a, b: (a @ b).sum(), a, b).largest == 80


def test_counting_changes_no_result():
    x = CATALOGUE["gated_delta_rule"].arguments(np.random.default_rng(0), 9, (2,))
    seen = []
    count(lambda **x: seen.append(gated_delta_rule.chunk(**x, chunk_size=4)), **x)
    for got, wanted in zip(seen[0], gated_delta_rule.chunk(**x, chunk_size=4)):
        assert np.array_equal(got, wanted)


# --- the command --------------------------------------------------------------------------------------------------------

SIZES = "--tokens 131072 --heads 16 --kv-heads 2 --key-dim 128 --value-dim 64 --layers 3 --dtype-bytes 2".split()


def test_command(capsys):
    assert main(["cost", "--mechanism", "softmax_attention", "gated_delta_rule", *SIZES]) == 0
    out = capsys.readouterr().out
    assert "tokens T = 131,072, " in out and "query heads on a key head G = 8\nkey heads 2, layers 3, bytes a number 2\n" in out
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if "|" in line]
    found = {tuple(row[:2]): row[2:] for row in rows}
    T, K, V = 131072, 128, 64
    by_hand = {("softmax_attention", "matrix"): (48 * T * T * (K + V), 48 * T * T),
               ("softmax_attention", "loop"): (24 * T * T * (K + V), 24 * T * T),
               ("gated_delta_rule", "loop"): (3 * T * (2 * 3 + 16) * K * V, 6 * T)}
    for key, numbers in by_hand.items():
        assert found[key][1:] == [f"{n:,}" for n in numbers]
    assert found["softmax_attention", "T K + T V"] == [f"{n:,}" for n in (6 * T * (K + V) * 2, 48 * T * (K + V), 2 * 3 * (2 * (T + 2) + 16) * (K + V))]
    assert found["gated_delta_rule", "K V"] == [f"{n:,}" for n in (6 * K * V * 2, 3 * 22 * K * V, 2 * 3 * (2 * (K + V + 2 + 2 * K * V) + 16 * (K + V)))]
    assert found["gated_delta_rule", "chunk of 64"][0] == CATALOGUE["gated_delta_rule"].cost["chunk"]


@pytest.mark.parametrize("wrong, says", [
    (["--mechanism", "no_such"], "there is no mechanism 'no_such'"), (["--tokens", "0"], "tokens must be"), (["--tokens", "many"], "--tokens"),
    (["--kv-heads", "3"], "heads must be a multiple of kv_heads"), (["--chunk", "-1"], "chunk must be"), (["--layers", "0"], "layers must be")])
def test_bad_input_is_one_line_and_status_2(capsys, wrong, says):
    assert main(["cost", "--mechanism", "kda", *SIZES, *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err and "Traceback" not in err


def test_missing_sizes(capsys):
    assert main(["cost", "--mechanism", "kda", "--tokens", "3"]) == 2
    assert "--heads" in capsys.readouterr().err
