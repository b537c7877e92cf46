"""Every form and every gradient against outputs of Transformers, torch and flash-linear-attention (converted by make_golden.py)."""
import json
from pathlib import Path

import numpy as np
import pytest

from npattn.compare.measure import error
from npattn.compare.problem import evaluate
from npattn.compare.read import read

GOLDEN = Path(__file__).parent / "golden"
PROVENANCE = json.loads((GOLDEN / "provenance.json").read_text())
FORMS = [("loop", None), ("matrix", None), ("chunk", 1), ("chunk", 16), ("chunk", 64), ("chunk", "T + 1")]


@pytest.mark.parametrize("form, size", FORMS, ids=lambda x: str(x).replace(" ", "") if x else "")
@pytest.mark.parametrize("name", PROVENANCE)
def test_framework(name, form, size):
    dump, bound = read(GOLDEN / f"{name}.npz"), PROVENANCE[name]["bound"]
    keywords = {} if size is None else dict(chunk_size=dump.sizes["T"] + 1 if size == "T + 1" else size)
    found = evaluate(dump.problem, form, gradients="do" in dump.problem.arrays, **keywords)
    errors = {key: error(found[key], x).relative for key, x in dump.outputs.items()}
    assert max(errors.values()) <= bound, errors


def test_what_there_is():
    """Nothing recorded is left out: all outputs, gradients by every argument, of o alone and of both outputs."""
    dumps = {name: read(GOLDEN / f"{name}.npz") for name in PROVENANCE}
    assert len([name for name in dumps if name.startswith("transformers") and not name.endswith("_first")]) == 12
    assert len([name for name in dumps if name.startswith("torch_sdpa")]) == 14
    assert len([name for name in dumps if name.startswith("fla") and not name.endswith("_first")]) == 8
    assert len([name for name in dumps if name.startswith("h200")]) == 11
    for name, dump in dumps.items():
        if any(key.startswith("d") for key in dump.outputs):
            inputs = {key for key in dump.problem.arrays if key not in ("mask", "do", "dfinal_state")}
            forgotten = {"dbias"} if "alibi" in name else set()              # torch gives none for a bias without a gradient
            assert {"d" + key for key in inputs} - forgotten == {key for key in dump.outputs if key.startswith("d")}, name
    assert {PROVENANCE[name]["bound"] for name in dumps} == {1e-10, 1e-4, 1e-2}
    assert all(x.dtype == np.float64 for dump in dumps.values() for x in dump.outputs.values())


def test_one_number_by_hand():
    """One token from a zero state: o = K^-0.5 (q . k) beta v, whatever the gate, with q and k divided by their norms where the dump says so."""
    with np.load(GOLDEN / "transformers_gated_delta_rule_T001_nol2_noinit.npz") as z:
        q, k, v, beta = (z[name].astype(np.float64)[0, 0] for name in ("q", "k", "v", "beta"))
        o = 8 ** -0.5 * (q * k).sum(-1, keepdims=True) * beta[:, None] * v
        assert np.abs(o - z["o"][0, 0]).max() < 1e-15
