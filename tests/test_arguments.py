"""What is wrong with an argument is said in one line that names it and prints the shapes: the same in every form of every mechanism."""
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core import packed
from npattn.core.arrays import array_module, sum_to
from npattn.core.states import Cache, Normalized, leaves, map_state
from npattn.proof import fractions

ROWS = list(CATALOGUE.values())
FORMS = ("loop", "matrix", "chunk")
VJPS = ("loop_vjp", "matrix_vjp", "chunk_vjp")
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_form = pytest.mark.parametrize("form", FORMS + VJPS)
GATED = CATALOGUE["gated_delta_rule"]


def arguments(row, form, lead=(), T=5):
    x = row.arguments(np.random.default_rng(0), T, lead)
    return dict(x, do=np.ones(lead + (T, 3))) if form.endswith("vjp") else x


def call(row, form, x):
    return getattr(row.module, form)(**x, **row.options)


def refuses(kind, words, row, form, x):
    """The call raises `kind`, in one line that holds all the words; returns the line."""
    with pytest.raises(kind) as caught:
        call(row, form, x)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
    return message


# --- every argument of every form of every mechanism -----------------------------------------------------------------------

def jax_array():
    """What has a dtype, axes and a shape but is neither NumPy's nor CuPy's."""
    return SimpleNamespace(dtype=np.dtype("float32"), ndim=2, shape=(5, 4))


WRONG_TYPES = {
    "list": lambda x: x.tolist(), "integers": lambda x: np.ones(x.shape, int), "booleans": lambda x: np.ones(x.shape, bool),
    "text": lambda x: np.full(x.shape, "1"), "number": lambda x: 1.0, "NumPy's number": lambda x: np.float64(1), "another library": lambda x: jax_array(), "nothing like it": lambda x: object(),
    "masked": np.ma.array}


@every_row
@every_form
def test_types(row, form):
    x = arguments(row, form)
    for name, y in x.items():
        for label, change in WRONG_TYPES.items():
            if not isinstance(y, tuple):
                refuses(TypeError, [name], row, form, dict(x, **{name: change(y)}))
            elif "number" not in label:
                refuses(TypeError, [f"{name}.{y._fields[0]}"], row, form, dict(x, **{name: map_state(change, y)}))


@every_row
@every_form
def test_none_and_missing(row, form):
    x = arguments(row, form)
    for name in x:
        if name != "state":
            refuses(TypeError, [f"{name} is missing"], row, form, dict(x, **{name: None}))
            refuses(TypeError, [f"{form}() ", "missing", f"'{name}'"], row, form, {n: y for n, y in x.items() if n != name})


@every_row
@every_form
def test_shapes(row, form):
    """One entry too many along the last axis, too few axes, leading axes that do not broadcast: every shape is printed."""
    x = arguments(row, form, lead=(2,))
    for name, y in x.items():
        if isinstance(y, tuple):
            continue
        kind = dict(row.axes, do="T V")[name].split()
        longer = np.concatenate([y, y[..., :1]], -1)
        message = refuses(ValueError, [name, str(longer.shape)], row, form, dict(x, **{name: longer}))
        assert all(f"{n} {z.shape}" in message for n, z in x.items() if n != name and not isinstance(z, tuple)), message
        flat = np.asarray(y[(0,) * (y.ndim - len(kind) + 1)])
        refuses(ValueError, [f"{name} must end in ({', '.join(kind)})", str(flat.shape)], row, form, dict(x, **{name: flat}))
        apart = np.concatenate([y, y[:1]])
        if name != "do":
            refuses(ValueError, ["leading axes do not broadcast", f"{name} {apart.shape}"], row, form, dict(x, **{name: apart}))


@pytest.mark.parametrize("name", ["gla", "kda"])
@every_form
def test_one_gate_a_token_where_channels_have_their_own(name, form):
    row = CATALOGUE[name]
    x = arguments(row, form, lead=(2,))
    refuses(ValueError, ["g must end in (T, K); T is 5 in q and 2 in g: q (2, 5, 4)", "g (2, 5)"], row, form, dict(x, g=x["g"][..., 0]))


@every_row
@every_form
def test_one_token_is_not_five(row, form):
    """Tokens never broadcast.  (Queries of a cached mechanism may be more or fewer than its keys.)"""
    x = arguments(row, form)
    for name, kind in dict(row.axes, do="T V").items():
        if name in x and "T" in kind and (row.recurrent or name == "do"):
            refuses(ValueError, ["T is ", name], row, form, dict(x, **{name: x[name][:1]}))


@every_row
@every_form
def test_gates(row, form):
    x = arguments(row, form)
    for name in x:
        if name == "g" or name.startswith("g_"):
            for value, word in (1e-9, "a positive value"), (np.inf, "a positive value"), (np.nan, "NaN"):
                g = x[name].copy()
                g[2] = value
                refuses(ValueError, [f"{name} is the natural log of a decay", f"{name} {g.shape}", word], row, form, dict(x, **{name: g}))
                refuses(ValueError, [word], row, form, dict(x, **{name: g.astype(complex)}))


@every_row
@every_form
def test_states(row, form):
    """A state of another kind, and parts that do not fit each other."""
    x = arguments(row, form)
    for state in (x["v"],), Normalized(x["v"], x["v"]), Cache(x["k"], x["v"]), np.ones((4, 3)):
        if type(state) is not type(x["state"]):
            refuses(TypeError, ["state must be"], row, form, dict(x, state=state))
    longer = map_state(lambda y: np.concatenate([y, y[..., :1]], -1), x["state"])
    refuses(ValueError, ["state", str(leaves(longer)[0].shape)], row, form, dict(x, state=longer))


@every_row
@every_form
def test_keywords(row, form):
    """Beside q, k, v nothing goes by position, and an unknown keyword is refused."""
    x = arguments(row, form)
    refuses(TypeError, [f"{form}() ", "'gamma'"], row, form, dict(x, gamma=x["v"]))
    first = ("do", "q", "k", "v") if form in VJPS else ("q", "k", "v")
    rest = {name: y for name, y in x.items() if name not in first}
    name = next(iter(rest))
    with pytest.raises(TypeError, match="positional"):
        getattr(row.module, form)(*(x[n] for n in first), rest.pop(name), **rest, **row.options)


@every_row
@pytest.mark.parametrize("form", VJPS)
def test_cotangents(row, form):
    x = arguments(row, form)
    final = row.module.loop(**{n: y for n, y in x.items() if n != "do"}, **row.options)[1]
    call(row, form, dict(x, dfinal_state=final))
    refuses(ValueError, ["do (2, 5, 3)", "(5, 3)"], row, form, dict(x, do=np.ones((2, 5, 3))))
    wide = map_state(lambda y: np.stack([y, y]), final)
    refuses(ValueError, ["dfinal_state", str(leaves(wide)[0].shape)], row, form, dict(x, dfinal_state=wide))
    longer = map_state(lambda y: np.concatenate([y, y[..., :1]], -1), final)
    refuses(ValueError, ["dfinal_state", str(leaves(longer)[0].shape)], row, form, dict(x, dfinal_state=longer))
    refuses(TypeError, ["dfinal_state"], row, form, dict(x, dfinal_state=map_state(lambda y: y.astype(int), final)))
    refuses(TypeError, ["dfinal_state must be"], row, form, dict(x, dfinal_state=(x["v"],)))


@every_row
@pytest.mark.parametrize("form", ["chunk", "chunk_vjp"])
@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3", None])
def test_chunk_size(row, form, size):
    refuses(ValueError, ["chunk_size must be an integer of at least 1", repr(size)], row, form, dict(arguments(row, form), chunk_size=size))


@every_row
def test_chunk_size_of_numpy(row):
    x = arguments(row, "chunk")
    assert np.array_equal(row.module.chunk(**x, chunk_size=np.int64(2), **row.options)[0], row.module.chunk(**x, chunk_size=2, **row.options)[0])


# --- scale, empty axes, fractions ---------------------------------------------------------------------------------------

@every_form
@pytest.mark.parametrize("scale", [True, "1", [1.0], (1,), np.ones(1), np.ones((2, 2))], ids=repr)
def test_scale(form, scale):
    refuses(TypeError, ["scale must be one number"], GATED, form, dict(arguments(GATED, form), scale=scale))


@pytest.mark.parametrize("scale", [2, 2.0, np.float64(2), np.float32(2), np.array(2.0)], ids=repr)
def test_scale_never_widens(scale):
    x = {name: y.astype(np.float32) for name, y in arguments(GATED, "loop").items()}
    for form in FORMS:
        o, state = call(GATED, form, dict(x, scale=scale))
        assert o.dtype == state.dtype == np.float32
        np.testing.assert_allclose(o, 2 * call(GATED, form, dict(x, scale=1))[0], rtol=1e-5, atol=1e-6)


def test_default_scale_of_fractions():
    """Of K = 4 it is 1/2; of K = 3 it is no fraction, and said to be none."""
    row = CATALOGUE["linear_attention"]
    ones = lambda K: dict(q=fractions(np.ones((2, K), int)), k=fractions(np.ones((2, K), int)), v=fractions([[1], [1]]))
    assert row.module.loop(**ones(4))[0].tolist() == [[2], [4]]              # 1/2 of 4 and of 4 + 4
    for form in FORMS:
        refuses(ValueError, ["scale", "K = 3", "(2, 3)"], row, form, ones(3))
        assert getattr(row.module, form)(**ones(3), scale=1)[0].tolist() == [[3], [6]]


@pytest.mark.parametrize("row", [row for row in ROWS if row.recurrent], ids=lambda row: row.name)
def test_no_keys_at_all(row):
    """K = 0: nothing can be remembered, so all outputs are zero."""
    x = row.arguments(np.random.default_rng(0), 5, K=0, V=3)
    for form in FORMS:
        o, state = call(row, form, x)
        assert o.shape == (5, 3) and not o.any() and all(part.size == 0 for part in leaves(state))
    for form in VJPS:
        d = call(row, form, dict(x, do=np.ones((5, 3))))
        assert d["v"].shape == (5, 3) and not d["v"].any()


# --- types that do mix, and those that do not ------------------------------------------------------------------------------

def test_numpy_and_cupy_do_not_mix(monkeypatch):
    class ndarray(np.ndarray):
        __module__ = "cupy"

    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    x = arguments(GATED, "loop")
    device = x["k"].view(ndarray)
    assert array_module(x["q"], device) is sys.modules["cupy"]
    for form in FORMS:
        refuses(TypeError, ["NumPy", "CuPy", "k cupy", "q numpy"], GATED, form, dict(x, k=device))


def test_sum_to():
    x = np.arange(24.).reshape(2, 3, 4)
    for shape, wanted in (((2, 3, 4), x), ((3, 4), x[0] + x[1]), ((1, 4), (x[0] + x[1]).sum(0)[None]), ((2, 1, 1), x.sum((1, 2))[:, None, None]), ((), 276.)):
        assert np.array_equal(sum_to(x, shape), wanted) and np.shape(sum_to(x, shape)) == shape
    assert sum_to(fractions([["1/2", "1/3"]]), (1, 1)).tolist() == fractions([["5/6"]]).tolist()


# --- packed ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("offsets", [[0, 3], [1, 6], [0, 4, 2, 6], [0, -1, 6], [0., 6.], [6], [], None, "06", np.array([[0, 6]]), [False, True]], ids=repr)
def test_offsets(offsets):
    x = {name: y for name, y in arguments(GATED, "loop", T=6).items() if name != "state"}
    for wrapper, forms, more in (packed.packed, FORMS, {}), (packed.packed_vjp, VJPS, dict(do=np.ones((6, 3)))):
        for form in forms:
            with pytest.raises(ValueError, match=re.escape("cu_seqlens must")):
                wrapper(getattr(GATED.module, form), **more, **x, cu_seqlens=offsets)


def test_packed_shapes():
    x = {name: y for name, y in arguments(GATED, "loop", T=6).items() if name != "state"}
    loop, vjp, do = GATED.module.loop, GATED.module.loop_vjp, np.ones((6, 3))
    for rows in np.ones((3, 4, 3)), np.ones((4, 3)), np.ones(()):
        with pytest.raises(ValueError, match="one row for each of the 2 sequences"):
            packed.packed(loop, **x, cu_seqlens=[0, 3, 6], state=rows)
        with pytest.raises(ValueError, match="one row for each of the 2 sequences"):
            packed.packed_vjp(vjp, do, **x, cu_seqlens=[0, 3, 6], dfinal_state=rows)
    with pytest.raises(ValueError, match=re.escape("T is 6 in q and 5 in k: q (6, 4), k (5, 4)")):
        packed.packed(loop, **dict(x, k=x["k"][:5]), cu_seqlens=[0, 3, 6])
    with pytest.raises(TypeError, match="q must be a NumPy or CuPy array, not list"):
        packed.packed(loop, **dict(x, q=x["q"].tolist()), cu_seqlens=[0, 3, 6])
    with pytest.raises(ValueError, match=re.escape("T is 6 in q and 5 in do")):
        packed.packed_vjp(vjp, do[:5], **x, cu_seqlens=[0, 3, 6])
