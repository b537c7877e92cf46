"""What the examples with models compute: the right rows, the right task, the right gradients.  (That they run is tested with all others.)"""
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from npattn.models import hybrid, safetensors

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_run_hybrid_model(capsys):
    ids, far = example("run_hybrid_model")["main"](["--tokens", "5"])
    assert ids.shape == (105,)
    text = capsys.readouterr().out
    assert "full attention keeps 4.0 times as much" in text                  # two layers of eight keep all tokens, the others next to nothing
    assert far[3] == 2 * 2 * 32 * 4 * 131_072 and far[0] == 4 * (4 * 128 + 4 * 16 * 16)


def test_run_hybrid_model_from_a_checkpoint(capsys, tmp_path):
    run = example("run_hybrid_model")
    settings = run["TINY"] | dict(num_hidden_layers=4, tie_word_embeddings=True)
    weights = hybrid.random_weights(hybrid.Config.from_dict(settings), np.random.default_rng(5))
    (tmp_path / "config.json").write_text(json.dumps(settings))
    safetensors.save(tmp_path / "model.safetensors", weights)
    ids, _ = run["main"](["--checkpoint", str(tmp_path), "--prompt", "3,1,4", "--tokens", "6"])
    assert (ids == hybrid.generate(np.array([3, 1, 4]), weights, hybrid.Config.from_dict(settings), max_new_tokens=6)).all()
    assert "after 3 tokens: " + ",".join(map(str, ids[3:])) in capsys.readouterr().out


def test_the_recall_task():
    """Every query's answer is the value of the last pair with that key, found here by walking through the sequence."""
    run = example("train_associative_recall")
    ids, answers, twice = run["sequences"](np.random.default_rng(0), 5)
    assert ids.shape == (5, 2 * 24 + 16) and twice.sum(-1).tolist() == [8] * 5
    for row, right, again in zip(ids, answers, twice):
        memory, seen = {}, []
        for key, value in row[:48].reshape(-1, 2):
            memory[key] = value - 48
            seen.append(key)
        assert [memory[key] for key in row[48:]] == right.tolist() and [seen.count(key) == 2 for key in row[48:]] == again.tolist()


@pytest.mark.parametrize("rule", ["linear_attention", "gated_delta_rule"])
def test_gradients_of_the_recall_model(rule):
    """All weights at once, along one direction, by the complex step."""
    run, rng = example("train_associative_recall"), np.random.default_rng(1)
    weights = {name: w.astype(np.float64) for name, w in run["weights_of"](run[rule], rng).items()}
    ids, answers, _ = run["sequences"](rng, 2)
    ways = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    _, gradients, _ = run["loss_and_gradients"](ids, answers, weights, run[rule])
    moved = {name: w + 1e-30j * ways[name] for name, w in weights.items()}
    expected = run["loss_and_gradients"](ids, answers, moved, run[rule])[0].imag / 1e-30
    assert gradients.keys() == weights.keys()
    assert abs(sum((gradients[name] * ways[name]).sum() for name in weights) - expected) < 1e-11 * abs(expected)
    for name in weights:                                                     # and each alone: nothing hides behind a large one
        one = run["loss_and_gradients"](ids, answers, weights | {name: moved[name]}, run[rule])[0].imag / 1e-30
        assert abs((gradients[name] * ways[name]).sum() - one) < 1e-10 * max(abs(one), 1e-3), name
