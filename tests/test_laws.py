"""The catalogue × the laws of forward forms, and what the catalogue promises about the files."""
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import npattn
from npattn.catalogue import CATALOGUE
from npattn.proof.exact import fractions
from npattn.proof.law import settings
from npattn.proof.laws import FORWARD
from npattn.proof.measure import distance, finite, relative_error, whether
from npattn.proof.plain import definition_of

ROOT = Path(__file__).parents[1]
PACKAGE = Path(npattn.__file__).parent


def setting_id(options):
    return ",".join(f"{name}={value}" for name, value in options.items()) or "default"


def cases(laws):
    return [pytest.param(row, law, options, id=f"{row.name}-{law.name}-{setting_id(options)}")
            for row in CATALOGUE.values() for law in laws for options in settings(row) if not law.why_not(row, options)]


@pytest.mark.parametrize("row, law, options", cases(FORWARD))
def test_law(row, law, options):
    found = law.worst(row, options)
    assert law.holds(found), f"{found}; at most {law.tolerance}"
    assert found.what != "nothing to compare"


@pytest.mark.parametrize("row", list(CATALOGUE.values()), ids=lambda row: row.name)
def test_catalogue_row(row):
    assert getattr(npattn, row.name) is row.module
    assert Path(row.module.__file__) == PACKAGE / row.family / f"{row.name}.py"
    assert definition_of(row), f"npattn/proof/plain/{row.family}.py has no plain definition of {row.name}"
    assert isinstance(row.master, tuple) or row.master or not row.recurrent
    assert set(row.inert) <= set(row.axes) and set(row.makers) <= set(row.axes) and set(row.reductions) <= set(CATALOGUE)
    assert list(row.axes)[:3] == ["q", "k", "v"] and list(row.axes)[-1] == "state"


@pytest.mark.parametrize("row", list(CATALOGUE.values()), ids=lambda row: row.name)
def test_signatures(row):
    """q, k, v by position, everything else by keyword; arguments in the order of AXES, then the options, then states and chunk_size."""
    def parameters(form):
        return list(inspect.signature(getattr(row.module, form)).parameters.values())

    names = [p.name for p in parameters("loop")]
    arrays = list(row.axes)[:-1]
    options = [name for name in names if name not in row.axes]
    assert names[:3] == arrays[:3] and names[-1] == "state" and sorted(names) == sorted([*arrays, *options, "state"])
    assert [name for name in names if name in arrays] == arrays
    required = [p.name for p in parameters("loop") if p.default is p.empty]
    assert set(arrays) <= set(required) and set(required) - set(arrays) <= set(row.options)
    expected = dict(loop=names, matrix=names, chunk=[*names, "chunk_size"], loop_vjp=["do", *names, "dfinal_state"],
                    matrix_vjp=["do", *names, "dfinal_state"], chunk_vjp=["do", *names, "dfinal_state", "chunk_size"])
    for form, wanted in expected.items():
        found = parameters(form)
        assert [p.name for p in found] == wanted, form
        positional = wanted[:4] if form.endswith("vjp") else wanted[:3]
        assert [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD] == positional, form
        assert all(p.kind is p.KEYWORD_ONLY for p in found[len(positional):]), form
        defaults = {p.name: p.default for p in found}
        assert all(defaults.get(name, None) is None for name in ("scale", "state", "dfinal_state")), form
        assert type(defaults.get("chunk_size", 64)) is int, form
        assert inspect.getdoc(getattr(row.module, form)), f"{form} has no docstring"


@pytest.mark.parametrize("axes, words", [
    (dict(w="T"), "gated_delta_rule: no random values are known for the argument 'w'; its row needs makers=dict(w=...)"),
    (dict(beta="T R"), "gated_delta_rule: the axis 'R' of beta is none of T, N, K, V, n")])
def test_an_argument_that_the_catalogue_cannot_make_is_named(axes, words, monkeypatch):
    row = CATALOGUE["gated_delta_rule"]
    monkeypatch.setattr(row.module, "AXES", row.axes | axes)
    with pytest.raises(ValueError, match=re.escape(words)):
        row.arguments(np.random.default_rng(0), 3)
    monkeypatch.setattr(row.module, "AXES", dict(row.axes, g_v="T"))
    monkeypatch.setattr(row.module, "AXES", {name: kind for name, kind in row.axes.items() if name != "w"} | dict(beta="T"))
    assert (row.arguments(np.random.default_rng(0), 3)["g_v"] <= 0).all()    # a further gate, by its name


def test_every_module_of_a_mechanism_has_a_row():
    families = {row.family for row in CATALOGUE.values()}
    files = {path.stem for family in families for path in (PACKAGE / family).glob("*.py")
             if path.stem != "__init__" and "\ndef loop(" in path.read_text()}
    assert files == set(CATALOGUE)


# --- the measure that every law uses --------------------------------------------------------------------------------------

@pytest.mark.parametrize("got, wanted, error", [
    ([1., 2.], [1., 4.], 0.5), ([0., 0.], [0., 0.], 0), ([1e-3], [0.], 1e-3), ([np.inf, -np.inf], [np.inf, -np.inf], 0), ([np.nan], [1.], np.inf),
    ([1.], [np.nan], np.inf), ([np.inf], [1.], np.inf), ([np.nan, 1.], [np.nan, 1.], np.inf), ([], [], 0), ([1 + 1j], [1 - 1j], 2 / 2 ** 0.5)])
def test_relative_error(got, wanted, error):
    assert relative_error(np.array(got), np.array(wanted)) == pytest.approx(error)


@pytest.mark.parametrize("got, wanted", [
    (np.ones(2), np.ones((1, 2))), (np.ones(2, np.float32), np.ones(2)), (1, np.ones(1)), (False, True), (dict(q=np.ones(1)), dict(k=np.ones(1))),
    ((np.ones(1), np.ones(2)), (np.ones(1), np.ones(1))), ((np.ones(1),), (np.ones(1), np.ones(1)))])
def test_what_differs_in_kind_is_infinitely_far(got, wanted):
    assert distance("x", got, wanted).error == np.inf


def test_an_infinite_distance_says_why():
    a = np.array([1., 2])
    half = fractions(["1/2", 1])
    for got, wanted, words in ((a * np.nan, a, "x: NaN"), (a, a * np.nan, "x: NaN is wanted"), (a, a * np.inf, "infinity"), (a[:1], a, "x: float64 (1,), not float64 (2,)"),
                               (half, half * 2, "x: 2 of 2 fractions differ")):
        assert words in distance("x", got, wanted).what
    assert distance("x", a, a).what == "x"
    assert whether(False, "x", "x does not") == (np.inf, "x does not") and finite("x", a).error == 0 and finite("x", a, a * np.inf).what == "x: not finite"
