"""Every law of forms catches something: a form that is wrong on purpose makes it fail, and `check` end with status 1."""
import functools
import json
from fractions import Fraction

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.core import arguments, cached
from npattn.proof.exact import log
from npattn.proof.law import judge
from npattn.proof.laws import FORWARD

LAWS = {law.name: law for law in FORWARD}
ROW = CATALOGUE["gated_delta_rule"]


def wrong(form):
    """Decorator: change(right form, its arguments) in place of the form `form` of a module."""
    def with_change(change):
        right = getattr(ROW.module, form)

        @functools.wraps(right)
        def broken(*args, **kwargs):
            return change(right, dict(zip("qkv", args)) | kwargs)
        return form, broken
    return with_change


@wrong("matrix")
def forgets_the_last_decay(right, x):
    g = x["g"].copy()
    g[..., -1:] = log([1]) if g.dtype == object else 0
    return right(**dict(x, g=g))


@wrong("matrix")
def squares_the_decay(right, x):
    return right(**dict(x, g=x["g"] + x["g"]))


@wrong("chunk")
def forgets_the_state(right, x):
    return right(**dict(x, state=None))


@wrong("chunk")
def puts_a_bad_block_after_the_first(right, x):
    o, state = right(**x)
    o[..., x["chunk_size"]:, :] *= 1 + 1e-9
    return o, state


@wrong("loop")
def counts_tokens(right, x):
    """Right only if a call starts at the beginning."""
    o, state = right(**x)
    return o * np.arange(1, 1 + o.shape[-2])[:, None], state


@wrong("matrix")
def looks_ahead(right, x):
    o, state = right(**x)
    return o + 1e-9 * o[..., -1:, :], state


@wrong("matrix")
def ignores_v(right, x):
    return right(**dict(x, v=0 * x["v"]))


@wrong("matrix")
def ignores_scale(right, x):
    return right(**dict(x, scale=None))


@wrong("loop")
def writes_into_v(right, x):
    x["v"] *= 1
    return right(**x)


@wrong("matrix")
def computes_in_float64(right, x):
    o, state = right(**x)
    return o + np.zeros(1), state


@wrong("matrix")
def reshapes_wrongly(right, x):
    """Takes memory for granted: right for contiguous arrays only."""
    k = x["k"]
    contiguous = k.flags.c_contiguous or k.size == 0
    return right(**dict(x, k=k if contiguous else k[..., ::-1, :]))


@wrong("matrix")
def wants_two_tokens(right, x):
    o, state = right(**x)
    return (o, state) if o.shape[-2] > 1 else (2 * o, state)


@wrong("loop")
def leaks_through_a_reset(right, x):
    return right(**dict(x, g=np.maximum(x["g"], -30)))


@wrong("matrix")
def decays_by_itself(right, x):
    o, state = right(**x)
    return o, state * np.asarray(.9, state.dtype) ** o.shape[-2] if state.dtype != object else state


@wrong("matrix")
def overflows(right, x):
    """Decay by differences of cumulative sums, as one finds it everywhere."""
    G = np.cumsum(x["g"], -1)
    with np.errstate(all="ignore"):
        D = np.tril(np.exp(G[..., :, None] - G[..., None, :]))
    o, state = right(**x)
    return o + 0 * D.sum(-1, keepdims=True), state


def all_forms(change):
    """The same mistake in every form, so that they agree."""
    return [(form, change_of(getattr(ROW.module, form), change)) for form in ("loop", "matrix", "chunk")]


def change_of(right, change):
    @functools.wraps(right)
    def broken(*args, **kwargs):
        return change(right, dict(zip("qkv", args)) | kwargs)
    return broken


@all_forms
def writes_half(right, x):
    return right(**dict(x, beta=x["beta"] / 2))


@all_forms
def divides_by_the_width(right, x):
    return right(**dict(x, scale=x.get("scale") or Fraction(1, x["q"].shape[-1])))


@all_forms
def decays_after_the_write(right, x):
    """The read sees a state that has faded once more."""
    o, state = right(**x)
    a = np.exp(x["g"])[..., None]
    return a * o, state


CAUGHT = {
    "definition": [writes_half, divides_by_the_width, decays_after_the_write, forgets_the_last_decay],
    "scale": [divides_by_the_width, ignores_scale],
    "master form": [writes_half, decays_after_the_write, counts_tokens],
    "forms": [forgets_the_last_decay, squares_the_decay, forgets_the_state, puts_a_bad_block_after_the_first],
    "float32": [forgets_the_last_decay, forgets_the_state, computes_in_float64],
    "fractions": [forgets_the_last_decay, squares_the_decay, ignores_v],
    "resume": [counts_tokens, forgets_the_state],
    "causal": [looks_ahead],
    "arguments matter": [ignores_v, ignores_scale],
    "arguments stay": [writes_into_v],
    "types": [computes_in_float64],
    "layouts": [reshapes_wrongly],
    "limits": [wants_two_tokens, forgets_the_last_decay, overflows],
    "resets": [leaks_through_a_reset, overflows],
    "reductions": [ignores_v, forgets_the_state],
    "packed": [forgets_the_state, decays_by_itself],
    "padding": [decays_by_itself],
    "extremes": [overflows],
}


def break_it(monkeypatch, mutation):
    for form, broken in mutation if isinstance(mutation, list) else [mutation]:
        monkeypatch.setattr(ROW.module, form, broken)


@functools.cache
def holds_unbroken(law):
    return judge(LAWS[law], ROW).ok


@pytest.mark.parametrize("law, mutation", [pytest.param(law, m, id=f"{law}-{n}") for law, ms in CAUGHT.items() for n, m in enumerate(ms)])
def test_a_law_catches_what_is_wrong(monkeypatch, law, mutation):
    assert holds_unbroken(law)
    break_it(monkeypatch, mutation)
    assert not judge(LAWS[law], ROW).ok


def test_every_law_is_shown_to_catch_something():
    assert set(CAUGHT) == {law.name for law in FORWARD if not law.why_not(ROW, {})}


def test_check_ends_with_status_1(monkeypatch, capsys):
    break_it(monkeypatch, looks_ahead)
    assert main(["check", ROW.name]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith(ROW.name) and "FAIL" in out.splitlines()[2]
    assert f"FAIL {ROW.name}, causal: " in out


def test_check_says_so_in_json(monkeypatch, capsys, forward_only):
    break_it(monkeypatch, forgets_the_last_decay)
    assert main(["check", ROW.name, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    laws = report["mechanisms"][ROW.name]
    assert report["ok"] is False and laws["forms"]["ok"] is False and laws["types"]["ok"] is True


def test_framework_data_catches_a_wrong_convention(monkeypatch, capsys, forward_only):
    """All forms agree on the wrong thing."""
    for form in "loop", "matrix", "chunk":
        monkeypatch.setattr(ROW.module, form, change_of(getattr(ROW.module, form), lambda right, x: right(**dict(x, scale=1))))
    assert main(["check", ROW.name, "--json"]) == 1
    laws = json.loads(capsys.readouterr().out)["mechanisms"][ROW.name]
    assert laws["forms"]["ok"] and not laws["framework data"]["ok"] and laws["framework data"]["what"].startswith("loop against ")


def test_forms_that_do_not_take_the_arguments_of_the_data(monkeypatch, capsys, forward_only):
    right = ROW.module.loop
    monkeypatch.setattr(ROW.module, "loop", lambda *args, **x: right(*args, **x))
    assert main(["check", ROW.name]) == 1
    assert f"FAIL {ROW.name}, framework data, framework gradients: DumpError: " in capsys.readouterr().out


@pytest.fixture
def forward_only(monkeypatch):
    """`check` without its gradients, which take most of the time."""
    monkeypatch.setattr("npattn.proof.command.GRADIENT", ())
    monkeypatch.setattr("npattn.proof.command.GRADIENTS", {})


def failures(capsys, row):
    """The lines of `check` that say FAIL."""
    assert main(["check", row.name]) == 1
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]


def test_a_form_that_raises_is_a_form_that_fails_and_is_said_once(monkeypatch, capsys, forward_only):
    monkeypatch.setattr(ROW.module, "chunk", lambda *args, **x: 1 / 0)
    said = [line for line in failures(capsys, ROW) if "ZeroDivisionError: division by zero" in line]
    assert len(said) == 1 and all(law in said[0].split(": ")[0] for law in ("forms", "fractions", "resume", "framework data"))


def test_a_missing_gradient_is_said_once(monkeypatch, capsys):
    row = CATALOGUE["block_topk_attention"]
    monkeypatch.delattr(row.module, "chunk_vjp")
    said = failures(capsys, row)
    assert len(said) == 1 and "has no attribute 'chunk_vjp'" in said[0]


def test_a_missing_gradient_does_not_make_the_forward_forms_wrong(monkeypatch, capsys, forward_only):
    monkeypatch.delattr(ROW.module, "matrix_vjp")
    assert main(["check", ROW.name, "--json"]) == 1
    laws = json.loads(capsys.readouterr().out)["mechanisms"][ROW.name]
    assert laws["framework data"]["ok"] and not laws["framework gradients"]["ok"]


def test_who_disagrees_is_said_without_blame(monkeypatch, capsys, forward_only):
    """With a wrong loop, loop and matrix disagree; the plain definition says which of them is wrong."""
    monkeypatch.setattr(ROW.module, "loop", change_of(ROW.module.loop, lambda right, x: right(**dict(x, g=2 * x["g"]))))
    told = {line.split(": ")[0]: line.split(": ", 1)[1] for line in failures(capsys, ROW)}
    assert told[f"FAIL {ROW.name}, forms"].startswith("loop against ")
    assert told[f"FAIL {ROW.name}, definition"].startswith("loop against the plain definition")


def test_what_does_not_matter_is_a_sentence(monkeypatch, capsys, forward_only):
    break_it(monkeypatch, ignores_v)
    lines = failures(capsys, ROW)
    assert f"FAIL {ROW.name}, arguments matter: matrix does not depend on v" in lines
    assert not any("inf" in line.split() for line in lines)


# --- mistakes common to all forms ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
@pytest.mark.parametrize("change", [
    lambda right, x: right(**dict(x, v=2 * x["v"])), lambda right, x: (np.roll(right(**x)[0], 1, -2), right(**x)[1]),
    lambda right, x: right(**dict(x, k=x["k"][..., ::-1]))], ids=["values doubled", "a token late", "key channels reversed"])
def test_a_mistake_of_all_forms_alike_is_seen(row, change, monkeypatch):
    for form in "loop", "matrix", "chunk":
        monkeypatch.setattr(row.module, form, change_of(getattr(row.module, form), change))
    assert not judge(LAWS["definition"], row).ok


@pytest.mark.parametrize("row", [row for row in CATALOGUE.values() if not LAWS["scale"].why_not(row, {})], ids=lambda row: row.name)
def test_another_default_scale_is_seen(row, monkeypatch):
    whole = arguments.scale_of
    for module in arguments, cached:
        monkeypatch.setattr(module, "scale_of", lambda scale, q: whole(scale, q) if scale is not None else whole(None, q) ** 2)
    assert not judge(LAWS["definition"], row).ok and not judge(LAWS["scale"], row).ok


# --- block top-k: what its forms choose alike ------------------------------------------------------------------------------

def divided_by_block_size(k, block_size):
    parts = [k[..., start:start + block_size, :].sum(-2, keepdims=True) / block_size for start in range(0, k.shape[-2], block_size)]
    return np.concatenate(parts, -2) if parts else k


CHOICES = {
    "the lowest-scoring blocks": ("rank", lambda right, xp, c: right(xp, -c)),
    "no scores": ("means", lambda right, k, block_size: 0 * right(k, block_size)),
    "a short block divided by block_size": ("means", lambda right, k, block_size: divided_by_block_size(k, block_size)),
    "a query that does not see itself": ("sees", lambda right, kept, n, i, j, block_size, causal: right(kept, n - 1, i, j, block_size, causal)),
    "one block too many": ("keep", lambda right, q, r, n, i, block_size, topk, causal: right(q, r, n, i, block_size, topk + 1, causal)),
    "one block too few": ("keep", lambda right, q, r, n, i, block_size, topk, causal: right(q, r, n, i, block_size, topk - 1 or 1, causal)),
    "blocks counted from the first new key": ("keep", lambda right, q, r, n, i, block_size, topk, causal: right(q, r, 0, i, block_size, topk, causal)),
    "the own block not kept": ("keep", lambda right, q, r, n, i, block_size, topk, causal: right(q, r, n, i, block_size, topk + causal, causal)
                               & (np.arange(r.shape[-2]) != (n + np.arange(i.start, i.stop)[:, None]) // block_size if causal else True)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_wrong_choice_of_blocks_is_seen(name, monkeypatch):
    row, (function, change) = CATALOGUE["block_topk_attention"], CHOICES[name]
    monkeypatch.setattr(row.module, function, functools.partial(change, getattr(row.module, function)))
    assert not judge(LAWS["definition"], row).ok


def test_check_sees_a_wrong_choice_of_blocks(monkeypatch, capsys, forward_only):
    row, (function, change) = CATALOGUE["block_topk_attention"], CHOICES["the lowest-scoring blocks"]
    monkeypatch.setattr(row.module, function, functools.partial(change, getattr(row.module, function)))
    assert any(line.startswith(f"FAIL {row.name}, definition: ") for line in failures(capsys, row))


def test_all_blocks_are_softmax_attention_to_the_law(monkeypatch):
    row = CATALOGUE["block_topk_attention"]
    assert judge(LAWS["reductions"], row).error is not None and judge(LAWS["reductions"], row).ok
    monkeypatch.setattr(row.module, "keep", functools.partial(lambda right, q, r, n, i, block_size, topk, causal: right(q, r, n, i, block_size, min(topk, 3), causal),
                                                              row.module.keep))
    assert not judge(LAWS["reductions"], row).ok
