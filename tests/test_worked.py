"""Worked tables: what is computed on the way agrees with the mechanisms' own forms; the two published examples; the command and its errors."""
import dataclasses
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from npattn import simple_gla
from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.proof import fractions
from npattn.proof.example import unit_fractions
from npattn.proof.worked import DECAY_FIRST, PREDICT_FIRST, chunk_steps, chunk_table, example, loop_steps, loop_table, order

RECURRENT = [name for name, row in CATALOGUE.items() if row.recurrent]
KNOWN = [name for name in RECURRENT if order(name)]
DECAYS = {"T": "1/2, 0, 1, 1/3, 2/3", "T K": "1/2 1/3, 0 1, 1, 1/3 0, 2/3 1/5"}


def random_example(name):
    return example(name, tokens=5, keys="random", decay=DECAYS.get(CATALOGUE[name].axes.get("g")),
                   beta="1/2, 2, 1, 0, 3/2" if "beta" in CATALOGUE[name].axes else None)


def same(a, b):
    return a.shape == b.shape and (a == b).all()


@pytest.mark.parametrize("C", [1, 2, 5])
@pytest.mark.parametrize("name", KNOWN)
def test_the_quantities_of_a_chunk_give_what_the_loop_gives(name, C):
    x = random_example(name)
    loop, chunks = loop_steps(name, **x), chunk_steps(name, C, **x)
    for b, tables in chunks:
        y = {heading: value for table in tables for heading, value in table.items()}
        n = b.stop - b.start
        if "beta" in x:
            assert same(y["d = U - W S"], np.stack(loop["d = beta e"][b]))
            assert same(y["(I + L)^-1"] @ (y["L"] + fractions(np.eye(n, dtype=int))), fractions(np.eye(n, dtype=int)))
        assert same((y["history"] + y["inside"]) / y.get("row sums", 1), np.stack(loop["o"][b]))
        wrote = "d" if "beta" in x else "v"
        carried = y["A S"] + y[f"(z k)^T {wrote}"] if "g" in x else y["S before"] + y[f"k^T {wrote}"]
        assert same(carried, loop["S after"][b.stop - 1])
        assert same(y["S before"], loop["S before"][b.start]) and same(y["S after"], loop["S after"][b.stop - 1])


@pytest.mark.parametrize("name", KNOWN)
def test_a_token_decays_predicts_and_writes(name):
    x = random_example(name)
    y = loop_steps(name, **x)
    for t in range(5):
        before = y["decayed"][t] if "g" in x else y["S before"][t]
        assert same(before + np.outer(x["k"][t], y["d = beta e" if "beta" in x else "v"][t]), y["S after"][t])


def test_a_mechanism_whose_token_is_the_usual_one_gets_every_column(monkeypatch):
    """Found by trying, not by name: one that writes (1 - e^g) k does not."""
    assert {name: order(name) for name in KNOWN} == {name: DECAY_FIRST for name in KNOWN} | dict(gated_delta_rule_predict_first=PREDICT_FIRST)
    assert {"linear_attention", "normalized_linear_attention", "simple_gla", "gla", "delta_rule", "gated_delta_rule", "kda"} <= set(KNOWN)

    def averages(q, k, v, *, g, scale=None, state=None):
        return simple_gla.loop(q, (1 - np.exp(g))[..., None] * k, v, g=g, scale=scale, state=state)

    modules = dict(later=vars(simple_gla), average=vars(simple_gla) | dict(loop=averages))
    for name, members in modules.items():
        monkeypatch.setitem(sys.modules, f"npattn.linear.{name}", SimpleNamespace(**members))
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(CATALOGUE["simple_gla"], name=name))
    assert order("later") == DECAY_FIRST and order("average") is None
    x = example("average", decay="1/2", tokens=2)
    assert "decayed" in loop_steps("later", **x) and "decayed" not in loop_steps("average", **x)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_recurrent_mechanism_has_a_table(name, capsys):
    x = random_example(name)
    loop_table(name, **x)
    rows = capsys.readouterr().out.split("\n")
    assert "S after" in rows[0] and sum(row.startswith("t |") or row[:1].isdigit() for row in rows) == 6
    chunk_table(name, 2, **x)
    assert [row for row in capsys.readouterr().out.split("\n") if row.startswith("tokens")] == ["tokens 1 to 2", "tokens 3 to 4", "tokens 5 to 5"]


def test_examples():
    assert example("delta_rule", tokens=3, keys="identity")["v"].tolist() == np.eye(3).tolist()
    assert example("delta_rule", tokens=3, width=2)["k"].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert example("gla", decay="1 1/2, 0.25")["g"].tolist() == example("kda", decay="1 1/2, 1/4")["g"].tolist()
    assert [g.factor for g in example("simple_gla", decay="1, 1/2, 0")["g"]] == [1, Fraction(1, 2), 0]
    assert example("delta_rule", beta="1/2", tokens=2)["beta"].tolist() == [Fraction(1, 2)] * 2
    for width in 1, 2, 5:
        assert ((unit_fractions(np.random.default_rng(0), 9, width) ** 2).sum(-1) == 1).all()


def test_the_first_published_example(capsys):
    """Two tokens, K = V = I, beta 1, no decay: the states 0, diag(1, 0), I; the errors the values; d = V and o = I in one chunk."""
    assert main(["table", "gated_delta_rule", "--keys", "identity", "--tokens", "2"]) == 0
    assert capsys.readouterr().out == """\
t |    k |    v | S before | decayed | prediction | error e | d = beta e | S after |    o
1 | 1  0 | 1  0 |     0  0 |    0  0 |       0  0 |    1  0 |       1  0 |    1  0 | 1  0
  |      |      |     0  0 |    0  0 |            |         |            |    0  0 |
2 | 0  1 | 0  1 |     1  0 |    1  0 |       0  0 |    0  1 |       0  1 |    1  0 | 0  1
  |      |      |     0  0 |    0  0 |            |         |            |    0  1 |

decayed = e^g (S before)
prediction = k (decayed), error e = v - prediction, d = beta e
S after = decayed + k^T d, o = q (S after)
o is not scaled here; the default scale is 1/sqrt(2)
explained in derivations/07_gated_delta_rule.md
"""


def test_the_second_published_example():
    """Decays 1, 1/2, 1, 1/2 on e1, e2, e1, e2: the decay matrix and the errors e1, e2, e1/2, e2/2, token by token and as one chunk."""
    x = example("gated_delta_rule", decay="1, 1/2, 1, 1/2")
    (_, (writes, outputs)), = chunk_steps("gated_delta_rule", 4, **x)
    assert same(writes["D"], fractions([[1, 0, 0, 0], ["1/2", 1, 0, 0], ["1/2", 1, 1, 0], ["1/4", "1/2", "1/2", 1]]))
    errors = fractions([[1, 0], [0, 1], ["1/2", 0], [0, "1/2"]])
    assert same(writes["d = U - W S"], errors) and same(np.stack(loop_steps("gated_delta_rule", **x)["error e"]), errors)
    assert same(outputs["S after"], fractions([["1/2", 0], [0, 1]]))


def test_gates_and_strengths_are_shown_unless_all_are_1():
    shown = lambda **given: {heading: np.concatenate(steps).tolist() if heading == "e^g" else steps
                             for heading, steps in loop_steps("gated_delta_rule", **example("gated_delta_rule", **given)).items() if heading in ("e^g", "beta")}
    assert shown(tokens=2) == {}
    assert shown(decay="1, 1/2", beta="1, 1") == {"e^g": [1, Fraction(1, 2)]}
    assert shown(decay="1", beta="1, 2") == {"beta": [1, 2]}


@pytest.mark.parametrize("name", RECURRENT)
def test_the_command_says_what_every_column_is(name, capsys):
    """Each heading that is not an argument of the example stands in the lines below the table."""
    for argv in ["table", name, "--tokens", "2"], ["table", name, "--tokens", "2", "--chunk", "2"]:
        assert main(argv) == 0
        above, below = capsys.readouterr().out.split("\n\n")
        headings = {cell.strip() for line in above.split("\n") if "S after" in line or "S before" in line for cell in line.split("|")}
        columns = {heading.split(" = ")[0].split(",")[0] for heading in headings} - {"t", "k", "v"}
        assert all(column in below for column in columns), columns
        assert name not in KNOWN or f"derivations/{CATALOGUE[name].page}.md" in below


def test_long_fractions_are_printed_as_decimals_unless_exact(capsys):
    argv = ["table", "delta_rule", "--keys", "random", "--width", "3", "--tokens", "5"]
    main(argv)
    short = capsys.readouterr().out
    main([*argv, "--exact"])
    exact = capsys.readouterr().out
    longest = lambda text: max(len(word) for word in text.split() if word.count("/") == 1 and word[-1].isdigit())
    assert longest(short) <= 9 < longest(exact)
    decimal = lambda text: any(word.count(".") == 1 for word in text.split("\n\n")[0].split())
    assert decimal(short) and not decimal(exact)


@pytest.mark.parametrize("argv, words", [
    (["gated_delta"], "no mechanism 'gated_delta'"),
    (["softmax_attention"], "keeps a cache"),
    (["delta_rule", "--decay", "1"], "has no decay"),
    (["simple_gla", "--beta", "1"], "has no beta"),
    (["delta_rule", "--tokens", "0"], "tokens must be at least 1"),
    (["delta_rule", "--width", "0"], "width must be at least 1"),
    (["delta_rule", "--chunk", "0"], "chunk must be at least 1"),
    (["delta_rule", "--keys", "unit"], "invalid choice"),
    (["delta_rule", "--beta", "1, x"], "not a list of numbers"),
    (["gla", "--decay", "1/0"], "not a list of numbers"),
    (["gla", "--decay", "1, -1/2"], "0 ... 1"),
    (["gla", "--decay", "2"], "0 ... 1"),
    (["gla", "--decay", "1 1 1, 1"], "1 or 2 numbers"),
    (["gated_delta_rule", "--decay", "1, 1, 1", "--tokens", "2"], "1 or 2 entries"),
    (["gated_delta_rule", "--decay", "1, , 1"], "3 entries"),
    (["gated_delta_rule", "--decay", ""], "4 entries"),
    (["gated_delta_rule", "--beta", "1, 2", "--tokens", "1"], "1 entry"),
    (["delta_rule", "--keys", "random", "--seed", "-1"], "seed must be at least 0"),
])
def test_what_makes_no_example_is_one_line(argv, words, capsys):
    assert main(["table", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("npattn table: ") and words in err and err.count("\n") == 1
