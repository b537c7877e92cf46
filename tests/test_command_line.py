"""python -m npattn: what it prints, how it ends, and what it says when it is used wrongly."""
import configparser
import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npattn
from npattn import version
from npattn.__main__ import COMMANDS, main
from npattn.catalogue import CATALOGUE
from npattn.proof import command
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.laws import FORWARD

ROOT = Path(__file__).parents[1]


def run(capsys, *argv):
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


# --- check --------------------------------------------------------------------------------------------------------------

def test_check_of_two_mechanisms(capsys):
    status, out, err = run(capsys, "check", "linear_attention", "simple_gla")
    lines = out.splitlines()
    assert (status, err) == (0, "") and "FAIL" not in out
    assert [line.split()[0] for line in lines[2:4]] == [line.split()[0] for line in lines[7:9]] == ["linear_attention", "simple_gla"]
    for n, line in (7, lines[2]), (7, lines[3]), (6, lines[7]), (6, lines[8]):
        assert line.split()[2::2] == ["ok"] * n and all(float(figure) < 1e-9 for figure in line.split()[1:-2:2])       # data in float32 stand apart
    assert lines[3].split()[3] == lines[3].split()[9] == "0"                # fractions and causality: equal
    assert any(line.split()[:2] == ["simple_gla", "fla_simple_gla"] for line in lines)
    assert lines[-1].endswith("laws hold, 2 mechanisms.") and max(map(len, lines[:9])) <= 120


def test_check_says_why_a_law_does_not_apply(capsys, monkeypatch):
    monkeypatch.setattr(command, "GRADIENT", ())         # they take their time, and are not in question
    monkeypatch.setattr(command, "GRADIENTS", {})
    status, out, _ = run(capsys, "check", "gated_delta_rule_predict_first")
    assert status == 0 and out.splitlines()[2].split()[11] == "-" and "FRAMEWORK DATA" not in out
    assert "- no framework's values ship with npattn: gated_delta_rule_predict_first\n" in out


def test_check_in_json(capsys):
    status, out, _ = run(capsys, "check", "softmax_attention", "simple_gla", "--json")
    report = json.loads(out)
    assert status == 0 and report["ok"] is True and list(report["mechanisms"]) == ["softmax_attention", "simple_gla"]
    for laws in report["mechanisms"].values():
        assert set(laws) == {law.name for law in FORWARD + GRADIENT} | {"framework data", "framework gradients"}
    laws = report["mechanisms"]["softmax_attention"]
    assert laws["fractions"] == dict(applies=False, ok=True, error=None, tolerance=0, what="not rational in its inputs")
    assert laws["forms"]["applies"] and 0 < laws["forms"]["error"] < laws["forms"]["tolerance"] == 1e-12
    assert report["mechanisms"]["simple_gla"]["exact dual"]["error"] == 0


def test_check_names_and_explains_the_laws(capsys):
    status, out, _ = run(capsys, "check", "linear_attention", "block_topk_attention", "--laws")
    assert status == 0 and "FRAMEWORK DATA" not in out
    for name, lines in zip(("linear_attention", "block_topk_attention"), (part.splitlines() for part in out.split("\n\n")[:2]), strict=True):
        assert lines[0].split() == [name.upper(), "figure", "at", "most"]
        assert [line[:20].strip() for line in lines[1:]] == [*(law.name for law in FORWARD), "framework data", *(law.name for law in GRADIENT), "framework gradients"]
        for law, line in zip(FORWARD, lines[1:]):
            assert law.says in line or "does not apply: " in line
    assert "does not apply: not rational in its inputs" in out and out.count("0 ok        0  What comes later changes no bit of what came before.") == 2


def test_framework_data_in_float32_has_a_line_of_its_own(capsys, monkeypatch):
    """What fails is shown whatever its precision, and float32 where there is nothing else."""
    about = {name: dict(values=values) for name, values in dict(wide="float64", narrow="float32, no TF32").items()}
    monkeypatch.setattr("npattn.data.provenance", lambda: about)
    wide, narrow = (command.Verdict("x", error, bound, "", True) for error, bound in ((3e-16, 1e-10), (1e-6, 1e-4)))
    both = {("x", "wide"): wide, ("x", "narrow"): narrow}
    wrong = dataclasses.replace(narrow, error=1., ok=False)
    assert command.overall("x", both) == wide
    assert command.overall("x", {("x", "narrow"): narrow}) == narrow and command.overall("x", both | {("x", "narrow"): wrong}) == wrong


# --- list ---------------------------------------------------------------------------------------------------------------

def test_list(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0
    *entries, words = out.split("\n\n")
    entries = dict(entry.split(" ", 1) for entry in entries)
    assert list(entries) == list(CATALOGUE)
    for part in ("(delta)", "g (..., T)", "beta (..., T)", "state (..., K, V)", "exact, analytic, causal", "reduces to delta_rule", "arXiv 2412.06464",
                 "scale", "npattn/delta/gated_delta_rule.py"):
        assert part in entries["gated_delta_rule"]
    assert "block_size (required), topk (required), causal=False, scale=None" in entries["block_topk_attention"]
    assert "causal" not in entries["block_topk_attention"].splitlines()[3] and "causal=True" in entries["softmax_attention"]
    assert all(f"{word}: " in words for word in ("exact", "analytic", "causal"))
    assert "state.S (..., K, V)  state.z (..., K)" in entries["normalized_linear_attention"] and "eps" in entries["normalized_linear_attention"]


def test_list_in_json(capsys):
    status, out, _ = run(capsys, "list", "--json")
    found = json.loads(out)
    assert status == 0 and list(found) == list(CATALOGUE)
    kda = found["kda"]
    assert kda["arguments"] == dict(q="T K", k="T K", v="T V", g="T K", beta="T") and kda["state"] == dict(state="K V") and kda["exact"] is True
    assert kda["reduces_to"] == ["gated_delta_rule"] and kda["forms"] == ["loop", "matrix", "chunk", "loop_vjp", "matrix_vjp", "chunk_vjp"]
    assert all((ROOT / row["file"]).is_file() for row in found.values())
    topk = found["block_topk_attention"]                                    # only what is true of the function, not of the laws' settings
    assert topk["required"] == ["block_size", "topk"] and topk["options"] == dict(causal=False, scale=None) and topk["causal"] is False
    for name, entry in found.items():
        parameters = inspect.signature(CATALOGUE[name].module.loop).parameters
        assert all(parameters[n].default == x for n, x in entry["options"].items()) and all(parameters[n].default is inspect.Parameter.empty for n in entry["required"])
        assert {*entry["arguments"], *entry["required"], *entry["options"], "state"} == set(parameters)


def test_the_table_of_the_readme_is_the_catalogue(capsys):
    status, out, _ = run(capsys, "list", "--markdown")
    table = (ROOT / "README.md").read_text().split("<!-- mechanisms -->")[1].split("<!-- end -->")[0]
    assert status == 0 and table.strip() == out.strip()
    assert "| no |" not in "".join(line.rsplit("|", 2)[0] for line in out.splitlines())          # every form is there


# --- compare ------------------------------------------------------------------------------------------------------------

@pytest.fixture
def dump(tmp_path):
    """One token written and read back: o = q · k v, with scale 1."""
    x = dict(mechanism="linear_attention", layout="bthd", q=[1., 2], k=[3., 4], v=[5.], o=[55.])
    path = tmp_path / "dump.npz"
    np.savez(path, **{name: y if isinstance(y, str) else np.array(y).reshape(1, 1, 1, -1) for name, y in x.items()}, **{"opt.scale": 1.0})
    return path


def test_compare(capsys, dump, tmp_path):
    status, out, err = run(capsys, "compare", str(dump))
    assert (status, err) == (0, "") and "linear_attention" in out
    assert run(capsys, "compare", str(dump), "--mechanism", "linear_attention", "--layout", "bthd")[0] == 0
    arrays = dict(np.load(dump))
    np.savez(tmp_path / "wrong.npz", **dict(arrays, o=arrays["o"] * 2))
    assert run(capsys, "compare", str(tmp_path / "wrong.npz"))[0] == 1
    status, out, _ = run(capsys, "compare", str(tmp_path / "wrong.npz"), "--json")
    assert status == 1 and isinstance(json.loads(out), dict)


# --- used wrongly: one line on stderr, status 2 -------------------------------------------------------------------------------

@pytest.mark.parametrize("argv, words", [
    ([], "npattn: the following arguments are required: COMMAND"),
    (["chek"], "invalid choice: 'chek'"),
    (["check", "--fast"], "unrecognized arguments: --fast"),
    (["check", "gated_delta"], "npattn check: unknown mechanism 'gated_delta'; did you mean gated_delta_rule?"),
    (["check", "mamba"], "unknown mechanism 'mamba'; there are linear_attention, "),
    (["compare"], "npattn compare: the following arguments are required: DUMP.npz"),
    (["compare", "no such file.npz"], "no such file.npz"),
    (["compare", __file__], "npattn compare: "),
    (["compare", "."], "npattn compare: "),
    (["compare", "x.npz", "--layout", "thbd"], "invalid choice: 'thbd'"),
])
def test_wrong_use(capsys, argv, words):
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_compare_with_an_unknown_mechanism(capsys, dump):
    status, out, err = run(capsys, "compare", str(dump), "--mechanism", "linear")
    assert (status, out) == (2, "") and "linear" in err and err.count("\n") == 1


def test_version(capsys, monkeypatch):
    """The one that setup.cfg states; of a package without its tree, what the installer noted."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["metadata"]["version"]
    assert npattn.__version__ == wanted and run(capsys, "--version") == (0, wanted + "\n", "")
    monkeypatch.setattr(version, "__file__", str(ROOT / "elsewhere" / "npattn" / "version.py"))
    monkeypatch.setattr(version.metadata, "version", lambda name: f"{name} as installed")
    assert npattn.__version__ == "npattn as installed"
    with pytest.raises(AttributeError, match="no attribute 'mamba'"):
        npattn.mamba


def test_help(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0 and all(name in out for name in COMMANDS)
    for name in COMMANDS:
        assert main([name, "--help"]) == 0


# --- as a process ---------------------------------------------------------------------------------------------------------------

def process(*argv, **settings):
    return subprocess.Popen([sys.executable, "-m", "npattn", *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def test_as_a_process():
    found = process("check", "linear_attention")
    out, err = found.communicate(timeout=60)
    assert (found.returncode, err) == (0, "") and "1 mechanism." in out
    assert process("check", "nothing").wait(60) == 2


def test_a_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)                                     # whoever was to read has left
    found = subprocess.run([sys.executable, "-m", "npattn", "list", "--json"], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert found.stderr == b"" and found.returncode not in (0, 1, 2)
