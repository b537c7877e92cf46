"""Forms on several threads: bit for bit what the undivided call gives, whatever broadcasts and whatever is left out."""
import inspect

import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core import workers
from npattn.core.packed import packed
from npattn.core.states import leaves, map_state
from npattn.core.workers import spread
from npattn.proof.law import settings

FORMS = ("loop", "matrix", "chunk")
ROWS = [pytest.param(row, options, id=f"{row.name}-{i}") for row in CATALOGUE.values() for i, options in enumerate(settings(row))]


def same(got, wanted):
    """Equal bit for bit, in shape, type and kind."""
    if isinstance(wanted, dict):
        return list(got) == list(wanted) and all(same(got[name], wanted[name]) for name in wanted)
    if isinstance(wanted, tuple):
        return type(got) is type(wanted) and all(map(same, got, wanted))
    return type(got) is np.ndarray and (got.shape, got.dtype, got.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())


def arguments(row, lead, state=True, **shared):
    """Random float32 arguments; `shared` gives names leading axes of their own."""
    rng = np.random.default_rng(0)
    make = lambda lead: row.arguments(rng, 9, lead, n=9, dtype=np.float32, state=state)
    return dict(make(lead), **{name: make(own)[name] for name, own in shared.items() if name in row.axes})


def calls(row, options, x, end=True):
    """(name, function, its arguments) of every form and every vjp."""
    o, final = row.module.loop(**x, **options)
    back = dict(x, do=o, dfinal_state=final if end else None)
    for name in FORMS:
        more = dict(options, **dict(chunk_size=4) if name == "chunk" else {})
        yield name, getattr(row.module, name), dict(x, **more)
        yield f"{name}_vjp", getattr(row.module, f"{name}_vjp"), dict(back, **more)


@pytest.mark.parametrize("lead, shared, state", [
    ((5,), {}, True), ((2, 3), {}, True), ((3, 2), {}, False),
    ((2, 4), dict(k=(2, 1), v=(2, 1)), False),                               # heads that share keys
    ((2, 4), dict(q=(4,), beta=(1, 4), g=()), True),                         # arguments without some leading axes
    ((), dict(q=(4,)), True),                                                # only queries have heads: one state for all
], ids=str)
@pytest.mark.parametrize("row, options", ROWS)
def test_bit_for_bit(row, options, lead, shared, state):
    x = arguments(row, lead, state, **shared)
    for name, form, given in calls(row, options, x, end=state):
        wanted = form(**given)
        for n in 2, 3:
            assert same(spread(form, n)(**given), wanted), (name, n)


@pytest.mark.parametrize("shape", [(2, 3, 9, 18), (3, 9, 18), (1, 1, 18), (18,)], ids=str)
def test_what_lies_over_the_scores_is_cut_too(shape):
    row, rng = CATALOGUE["softmax_attention"], np.random.default_rng(1)
    x = dict(arguments(row, (2, 3)), bias=rng.standard_normal(shape, np.float32), mask=rng.random(shape) < .7)
    for name, form, given in calls(row, {}, x):
        assert same(spread(form, 2)(**given), form(**given)), name
    assert parts_of(row.module.matrix, **x, workers=2) == [(1, 3), (1, 3)]


def parts_of(form, *args, **kwargs):
    """The leading shapes of q in each part, in order."""
    seen, bind = [], inspect.signature(form).bind
    def recorded(*args, **kwargs):
        seen.append(bind(*args, **kwargs).arguments["q"].shape[:-2])
        return form(*args, **kwargs)

    recorded.__signature__, recorded.__wrapped__ = inspect.signature(form), form
    spread(recorded, kwargs.pop("workers"))(*args, **kwargs)
    return sorted(seen)


def test_which_axis_is_cut():
    row = CATALOGUE["simple_gla"]
    parts = lambda lead, n, **shared: parts_of(row.module.loop, **arguments(row, lead, **shared), workers=n)
    assert parts((4,), 2) == [(2,), (2,)]
    assert parts((5,), 2) == [(2,), (3,)]
    assert parts((3, 4), 2) == [(3, 2), (3, 2)]                              # the more even axis
    assert parts((4, 4), 2) == [(2, 4), (2, 4)]                              # of equal ones the first
    assert parts((2,), 8) == [(1,), (1,)]
    assert parts((1, 1), 2) == [(1, 1)] and parts((), 2) == [()] and parts((4,), 1) == [(4,)]
    x = arguments(row, (2, 3), k=(1, 3))
    assert parts_of(row.module.loop, **x, workers=2) == [(1, 3), (1, 3)]
    do = row.module.loop(**x)[0]
    assert parts_of(row.module.loop_vjp, do, **x, workers=2) == [(2, 1), (2, 2)]   # the gradient of k sums over the first axis
    assert parts_of(row.module.loop_vjp, do, **dict(x, k=x["k"][:, :1]), workers=2) == [(2, 3)]


def test_a_gpu_is_left_alone(monkeypatch):
    row = CATALOGUE["simple_gla"]
    monkeypatch.setattr(workers, "array_module", lambda *x: "cupy")
    assert parts_of(row.module.loop, **arguments(row, (4,)), workers=2) == [(4,)]


def test_wrong_arguments_are_named_as_they_were_given():
    row = CATALOGUE["gated_delta_rule"]
    x = arguments(row, (4,))
    for wrong, error, words in [(dict(g=x["g"][:, :5]), ValueError, r"q \(4, 9, 4\)"), (dict(q=[1.]), TypeError, "q must be"),
                                (dict(k=x["k"][:3]), ValueError, r"leading axes do not broadcast: q \(4, 9, 4\)"),
                                (dict(g=-x["g"]), ValueError, "g is the")]:
        with pytest.raises(error, match=words):
            spread(row.module.chunk, 2)(**dict(x, **wrong))
    with pytest.raises(TypeError, match="missing a required argument: 'k'"):
        spread(row.module.chunk, 2)(x["q"])
    for n in 0, 1.5, True:
        with pytest.raises(ValueError, match="workers must be"):
            spread(row.module.chunk, n)


def test_a_spread_form_is_a_form():
    row = CATALOGUE["gated_delta_rule"]
    x = arguments(row, (4,), state=False)
    del x["state"]
    form = spread(row.module.chunk, 2)
    assert inspect.signature(form) == inspect.signature(row.module.chunk) and form.__doc__ == row.module.chunk.__doc__
    for got, wanted in zip(packed(form, **x, cu_seqlens=[0, 4, 9]), packed(row.module.chunk, **x, cu_seqlens=[0, 4, 9]), strict=True):
        assert all(map(np.array_equal, leaves(got), leaves(wanted)))


def test_arguments_stay_and_settings_of_numpy_hold():
    row = CATALOGUE["gated_delta_rule"]
    x = arguments(row, (4,))
    for y in x.values():
        map_state(lambda part: part.setflags(write=False), y)
    before = {name: y.copy() for name, y in x.items()}
    spread(row.module.chunk, 2)(**x)
    assert all(np.array_equal(x[name], before[name]) for name in x)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):       # in the threads too
        spread(row.module.chunk, 2)(**dict(x, v=np.full_like(x["v"], 3e38), k=np.full_like(x["k"], 3e38)))
