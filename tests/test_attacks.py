"""What once broke, or could: odd numbers, odd shapes, odd files.  Each case is the smallest that showed the fault."""
import io
import struct
import zipfile
from fractions import Fraction

import numpy as np
import pytest

from npattn import block_topk_attention, linear_attention, softmax_attention
from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.compare import DumpError, check_dump
from npattn.core.feature_maps import taylor, taylor_vjp
from npattn.core.functions import gated_rms_norm, l2norm, l2norm_vjp, rms_norm, rms_norm_vjp
from npattn.core.heads import group, repeat, repeat_vjp, ungroup
from npattn.core.packed import packed, packed_vjp
from npattn.core.states import Cache, Normalized, leaves, map_state
from npattn.core.workers import spread
from npattn.proof import Dual, central_differences, check_gradients, complex_step, directional_derivative, grad, vjp
from npattn.proof.exact import fractions
from npattn.proof.measure import distance, relative_error
from npattn.proof.worked import example, loop_table

# --- proofs must not say right where something is wrong ------------------------------------------------------------------


def test_a_wrong_value_beside_an_infinite_one():
    """Relative to infinity every error is 0: the size is that of the finite values."""
    assert relative_error(np.array([np.inf, 2.]), np.array([np.inf, 1.])) == 1
    assert relative_error(np.array([-np.inf, 3.]), np.array([-np.inf, 0.])) == 3
    assert distance("o", np.array([1., 1.]), np.array([np.inf, 1.])).error == np.inf


X = np.array([1., 2., 3.])


def test_a_gradient_within_a_gradient():
    """An array of the outer tape in the inner function: its positions mean nothing on the inner one (once the gradient came out as 0)."""
    for f in (lambda x, y: y * y * x, lambda x, y: x * y * y, lambda x, y: np.concatenate([y, x])):
        with pytest.raises(TypeError, match="two tapes"):
            grad(lambda x: grad(lambda y: f(x, y).sum())(np.ones(3))[0].sum())(X)
    with pytest.raises(TypeError, match="another tape"):
        grad(lambda x: grad(lambda y: (x * x).sum())(np.ones(3))[0].sum())(X)


def test_results_that_are_no_arrays():
    """A dict was no leaf, so its gradient was 0."""
    for result in dict(a=1.), {1.}, "a":
        with pytest.raises(TypeError, match=f"not a {type(result).__name__}"):
            vjp(lambda x: result, X)
        with pytest.raises(TypeError, match=f"not a {type(result).__name__}"):
            check_gradients(lambda x: result, lambda do, x: x, X)
    value, pull = vjp(lambda x: (3., x[0], None), X)
    assert value == (3., 1., None) and pull((None, np.array(2.), None))[0].tolist() == [2, 0, 0]


def test_arguments_of_numpy_by_name():
    """The tape looks for arrays among what goes by position; it says so if there is none."""
    with pytest.raises(TypeError, match="numpy.broadcast_to with array= with shape="):
        grad(lambda x: np.broadcast_to(array=x, shape=(2, 3)).sum())(X)
    assert grad(lambda x: np.broadcast_to(x, shape=(2, 3)).sum())(X)[0].tolist() == [2, 2, 2]


def test_exponent_of_zero():
    """0^n is 0 for every n > 0: nothing flows to n, no 0 times infinity.  d 2^3 / dn = 8 ln 2."""
    d_a, d_n = grad(lambda a, n: (a ** n).sum())(np.array([0., 2.]), np.array([2., 3.]))
    assert d_a.tolist() == [0, 12] and d_n.tolist() == [0, 8 * np.log(2)]


def test_negative_powers_of_duals():
    """1 / x at 2: 1/2 and -1/4, of an integer as of a fraction."""
    for two in 2, Fraction(2):
        y = Dual(two, 1) ** -1
        assert (y.value, y.derivative) == (Fraction(1, 2), Fraction(-1, 4)) and isinstance(y.value, Fraction)
    assert directional_derivative(lambda x: x ** -2, [np.array([2])], [np.array([1])]).tolist() == [Fraction(-1, 4)]


def test_functions_that_are_not_scalar():
    for derivative in complex_step, central_differences:
        with pytest.raises(ValueError, match=r"single number, not an array \(3,\)"):
            derivative(lambda x: x * x, X)
    with pytest.raises(ValueError, match=r"do \(2,\) is no gradient for a result \(3,\)"):
        check_gradients(lambda x: x * x, lambda do, x: 2 * x * do, X, do=np.ones(2))


def test_numbers_too_large_to_print(capsys):
    """A fraction beyond every decimal is printed as it is."""
    loop_table("delta_rule", longest=9, **example("delta_rule", tokens=1, beta="1e400"))
    assert str(10 ** 400) in capsys.readouterr().out


# --- files that are no dumps ---------------------------------------------------------------------------------------------


def npz(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        for name, content in members.items():
            z.writestr(name, content)
    return file.getvalue()


def npy(shape, type="'<f8'"):
    """The beginning of an .npy file whose header is written out as given."""
    header = f"{{'descr': {type}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def refused(source, *words):
    with pytest.raises(DumpError) as caught:
        check_dump(source)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1100 and all(word in message for word in words), message


@pytest.mark.parametrize("content", [npy(f"({2 ** 70},)"), npy(f"(0, {2 ** 70})"), npy("(True,)"), npy("(-1,)"), npy("(" * 3000), npy("(1.0,)"),
                                     npy("(1,)", "'|O'"), npy("(1,)", "5"), npy("(1,)", "[('a', '<f8', (10000000, 10000000))]"), b"", b"text"],
                         ids=["2**70", "0 x 2**70", "true", "negative", "brackets", "float", "object", "no type", "too large a type", "empty", "text"])
def test_headers(content):
    refused(io.BytesIO(npz({"q.npy": content})), "q")


def test_encrypted():
    """Bit 0 of the flags, in the local header and in the directory."""
    content = bytearray(npz({"q.npy": npy("(1,)") + bytes(8)}))
    content[content.find(b"PK\x03\x04") + 6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    refused(io.BytesIO(bytes(content)), "q cannot be read", "encrypted")


def test_every_mutilation_is_refused_in_one_line():
    """A byte changed, or the end cut off: read, or refused."""
    one, rng = np.ones((1, 2, 1, 1)), np.random.default_rng(0)
    file = io.BytesIO()
    np.savez_compressed(file, mechanism="linear_attention", q=one, k=one, v=one, o=one)
    for n in range(600):
        content = bytearray(file.getvalue())
        content[rng.integers(len(content))] = rng.integers(256)
        try:
            check_dump(io.BytesIO(bytes(content[:rng.integers(len(content))] if n % 3 == 0 else content)))
        except DumpError as error:
            assert "\n" not in str(error) and len(str(error)) < 1100


@pytest.mark.parametrize("options", [dict(mechanism="softmax_attention"), {"mechanism": "block_topk_attention", "opt.block_size": 2, "opt.topk": 1}],
                         ids=["softmax", "blocks"])
def test_the_gradient_of_a_cache_that_is_not_there(options):
    one = np.ones((1, 5, 1, 4))
    options |= dict(q=one, k=one, v=one, o=one, do=one)
    assert check_dump(options).right
    refused({**options, "dstate.k": one[:, :2], "dstate.v": one[:, :2]}, "dstate.k, dstate.v", "no state.k")


def test_one_line_whatever_is_quoted():
    one = dict(q=np.ones((1, 2, 1, 1)), k=np.ones((1, 2, 1, 1)), v=np.ones((1, 2, 1, 1)), o=np.ones((1, 2, 1, 1)))
    refused("no\nfile", "no file")
    refused(dict(one, mechanism="x" * 10 ** 5), "unknown mechanism")
    refused(dict(one, mechanism="linear_attention", **{"opt.scale": "1\n2"}), "opt.scale")
    refused(dict(one, mechanism="linear_attention", cu_seqlens=np.ones((3, 3))), "cu_seqlens")
    with pytest.raises(DumpError, match="mechanism must be a string, not 5"):
        check_dump(one, mechanism=5)
    with pytest.raises(DumpError, match="5 is no .npz file"):
        check_dump(5)


# --- arguments of the forms ------------------------------------------------------------------------------------------------

ROWS = list(CATALOGUE.values())
FORMS = dict(loop={}, matrix={}, chunk=dict(chunk_size=2))
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_recurrent_row = pytest.mark.parametrize("row", [row for row in ROWS if row.recurrent], ids=lambda row: row.name)
every_form = pytest.mark.parametrize("form", FORMS)


def made(row, T=5, **shape):
    return row.arguments(np.random.default_rng(0), T, **shape)


def run(row, form, x, **more):
    return getattr(row.module, form)(**x, **{**row.options, **FORMS[form.removesuffix("_vjp")], **more})


def changed(x, name, change):
    return dict(x, **{name: map_state(change, x[name])})


@every_row
@every_form
def test_nothing_that_comes_out_is_the_callers(row, form):
    """With no token the state goes through unchanged, and the gradient of the final state too: as copies, in which one may write."""
    for T in 0, 1:
        for lead in (), (2,):
            x = made(row, T, lead=lead)
            if lead:
                x = changed(x, "state", lambda part: part[:1])               # broadcast: what comes out is no view of it either
            o, final = run(row, form, x)
            dfinal = map_state(np.ones_like, final)
            d = run(row, form + "_vjp", x, do=np.ones_like(o), dfinal_state=dfinal)
            given = [part for y in (*x.values(), dfinal) for part in leaves(y)]
            for part in (o, *leaves(final), *(part for y in d.values() for part in leaves(y))):
                assert part.flags.writeable and not any(np.shares_memory(part, y) for y in given if part.size and y.size)


@every_row
@every_form
def test_no_values(row, form):
    """V = 0: outputs without columns, as in every other form."""
    x = made(row, V=0)
    assert run(row, form, x)[0].shape == (5, 0)
    d = run(row, form + "_vjp", x, do=np.ones((5, 0)))
    assert d["k"].shape == (5, 4) and not d["k"].any()


@every_form
def test_no_channels_in_blocks(form):
    """K = 0: all scores are 0, so the lower blocks are kept, and their values averaged."""
    v = np.array([[1.], [3], [5], [9]])
    none = np.ones((4, 0))
    o, _ = block_topk_attention.__dict__[form](none, none, v, block_size=2, topk=1, **FORMS[form])
    assert o.tolist() == [[2]] * 4
    d = block_topk_attention.__dict__[form + "_vjp"](np.ones((4, 1)), none, none, v, block_size=2, topk=1, **FORMS[form])
    assert d["v"].tolist() == [[2], [2], [0], [0]] and d["q"].shape == (4, 0)


@pytest.mark.parametrize("row", [CATALOGUE["gated_delta_rule"], CATALOGUE["softmax_attention"]], ids=lambda row: row.name)
def test_short_integers(row):
    """In int8 and uint8 the end of a block, 200 + 200, is not what it should be."""
    x = made(row, 300)
    wanted = row.module.loop(**x)[0]
    for size in np.uint8(200), np.int8(100):
        np.testing.assert_allclose(row.module.chunk(**x, chunk_size=size)[0], wanted, atol=1e-9)
        d = row.module.chunk_vjp(np.ones_like(wanted), **x, chunk_size=size)
        np.testing.assert_allclose(d["k"], row.module.loop_vjp(np.ones_like(wanted), **x)["k"], atol=1e-9)


NUMBERS = [Fraction(1, 2), np.longdouble(.5), np.float64(.5), np.array(.5), np.array(Fraction(1, 2), object)]
NO_NUMBERS = [True, "1", b"1", [1.], {1.}, {}, range(3), object(), float, np.ones(2), np.array("1"), np.array(True), None]


@every_row
@every_form
def test_numbers_never_widen(row, form):
    """A fraction made an array of objects of it, a long double an array of long doubles."""
    x = {name: map_state(np.float32, y) for name, y in made(row).items()}
    name = "scale" if row.name != "normalized_linear_attention" else "eps"
    wanted = run(row, form, x, **{name: .5})[0]
    for one in NUMBERS:
        o, _ = run(row, form, x, **{name: one})
        assert o.dtype == np.float32 and np.array_equal(o, wanted)
        assert run(row, form + "_vjp", x, do=np.ones_like(o), **{name: one})["q"].dtype == np.float32
    for other in NO_NUMBERS[:-1]:
        with pytest.raises(TypeError, match=f"{name} must be one number"):
            run(row, form, x, **{name: other})


def test_numbers_of_functions_never_widen():
    x = np.array([3, 4], np.float32)
    for call in (lambda eps: l2norm(x, eps=eps), lambda eps: l2norm_vjp(x, x, eps=eps), lambda eps: rms_norm(x, x, eps=eps),
                 lambda eps: rms_norm_vjp(x, x, x, eps=eps)[0], lambda eps: gated_rms_norm(x, x, x, eps=eps), lambda f: taylor(x, f), lambda f: taylor_vjp(taylor(x, f), x, f)):
        for one in NUMBERS:
            assert call(one).dtype == np.float32 and np.array_equal(call(one), call(.5))
    for call in (lambda eps: l2norm(x, eps=eps), lambda eps: rms_norm(x, x, eps=eps), lambda eps: rms_norm_vjp(x, x, x, eps=eps)):
        for other in NO_NUMBERS:
            with pytest.raises(TypeError, match="eps must be one number"):
                call(other)


@every_row
@pytest.mark.parametrize("where", ["do", "dfinal_state", "scale", "state", "v", "q"])
def test_one_complex_number_among_reals(row, where):
    """Every form's gradients are those of complex arrays throughout: no imaginary part is dropped, and those of complex arguments are complex."""
    if where == "scale" and row.name == "normalized_linear_attention":
        return
    x = made(row)
    o, final = row.module.loop(**x, **row.options)
    x |= dict(do=np.cos(o), dfinal_state=map_state(np.sin, final), **{} if row.name == "normalized_linear_attention" else dict(scale=.5))
    turned = lambda part: part * (1 + 1j) if where not in ("state", "q") else part + .1j
    x[where] = map_state(turned, x[where])
    wanted = row.module.loop_vjp(**{name: map_state(lambda part: part + 0j, y) for name, y in x.items()}, **row.options)
    for form in FORMS:
        d = run(row, form + "_vjp", x)
        for name in d:
            for got, right, argument in zip(leaves(d[name]), leaves(wanted[name]), leaves(x[name])):
                np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)
                assert got.dtype == complex or argument.dtype != complex


@every_form
def test_a_complex_bias_among_reals(form):
    x, bias = made(CATALOGUE["softmax_attention"], state=False), np.random.default_rng(1).standard_normal((5, 5)) * 1j
    d = run(CATALOGUE["softmax_attention"], form + "_vjp", x, do=np.ones((5, 3)), bias=bias)
    wanted = softmax_attention.loop_vjp(np.ones((5, 3)) + 0j, *(x[n] + 0j for n in "qkv"), bias=bias)
    for name in "q", "k", "v", "bias":
        np.testing.assert_allclose(d[name], wanted[name], atol=1e-12)


@every_row
@every_form
def test_objects_that_are_no_numbers(row, form):
    """Text, lists and nothing at all in an object array: said by name, not by whatever operation meets them first."""
    x = made(row)
    for name in x:
        for entry in "1", None, [1.]:
            def change(part):
                y = part.astype(object)
                y.flat[-1] = entry
                return y
            with pytest.raises(TypeError, match=rf"{name}.* holds objects of type {type(entry).__name__}, which are no numbers"):
                run(row, form, changed(x, name, change))


@every_row
@every_form
def test_objects_without_an_exponential(row, form):
    """Gates and scores need one; a fraction has none that is a fraction."""
    x = made(row)
    for name in ["g"] if "g" in x else ["q", "k", "v", "state"] if not row.recurrent else []:
        change = lambda part: np.asarray(fractions(np.full(part.shape, -1)))
        with pytest.raises(TypeError, match=rf"{name}.* holds objects of type Fraction, which have no exact exponential"):
            run(row, form, changed(x, name, change))


@every_form
def test_masks_and_flags(form):
    x = made(CATALOGUE["softmax_attention"], state=False)
    row = CATALOGUE["softmax_attention"]
    with pytest.raises(TypeError, match="mask must be a plain array, not a MaskedArray"):
        run(row, form, x, mask=np.ma.array(np.ones((5, 5), bool), mask=True))
    for row in row, CATALOGUE["block_topk_attention"]:
        for causal in "False", None, np.array([True, False]), 2, 1.0:
            with pytest.raises(TypeError, match="causal must be True or False"):
                run(row, form, x, causal=causal)
        assert np.array_equal(run(row, form, x, causal=0)[0], run(row, form, x, causal=np.False_)[0])


@every_form
def test_leading_axes_without_end(form):
    row = CATALOGUE["gated_delta_rule"]
    x = made(row, lead=(2,))
    assert run(row, form, dict(x, q=x["q"].reshape((1,) * 28 + x["q"].shape)))[0].shape == (1,) * 28 + (2, 5, 3)
    with pytest.raises(ValueError, match="more leading axes than NumPy can broadcast"):
        run(row, form, dict(x, q=x["q"].reshape((1,) * 40 + x["q"].shape)))


def test_heads_that_cannot_be():
    x = np.ones((4, 6, 3))
    for call, words in ((lambda: group(x, 2.), "heads must be"), (lambda: group(x, None), "heads must be"), (lambda: group(x, 3), "cannot be split into 3"),
                        (lambda: ungroup(x), "no axis -3"), (lambda: ungroup(x, 1), "no axis 1"), (lambda: repeat(x, 0), "times must be"),
                        (lambda: repeat_vjp(x, 3), "no 3 copies")):
        with pytest.raises(ValueError, match=words):
            call()


# --- NaN and infinity ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", [row for row in ROWS if row.causal], ids=lambda row: row.name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_where_it_comes_late(row, value):
    """NaN, infinity and what overflows, in token 9 of q, k, v or beta: the loop's outputs before it keep every bit, and those of the blocks before it.

    (In its own block it reaches earlier tokens: all at once means times a zero, and 0 NaN is NaN.)
    """
    x = made(row, 12, lead=(2,))
    with np.errstate(all="ignore"):
        for name in x.keys() & {"q", "k", "v", "beta"}:
            y = dict(x, **{name: x[name].copy()})
            y[name][:, 9] = value
            for form, first in ("loop", 9), ("chunk", 8):
                before, after = (run(row, form, z, **dict(chunk_size=4) if form == "chunk" else {})[0][:, :first] for z in (x, y))
                assert np.array_equal(before, after), (form, name)
            y[name][0] = x[name][0]                                          # nor does it ever reach another row of a batch
            for form in FORMS:
                assert np.array_equal(run(row, form, x)[0][0], run(row, form, y)[0][0]), (form, name)


def test_a_score_that_is_nan():
    """It is lowest of all, and how many tokens follow does not matter: with topk = 3 query 4 keeps both blocks before its own, NaN or not."""
    k = np.array([[1.], [1], [np.nan], [1], [2], [2], [3], [3], [4], [4]])
    for T in 5, 6, 10:
        kept = block_topk_attention.select(np.ones((T, 1)), k[:T], block_size=2, topk=3, causal=True)
        assert kept[4, :3].tolist() == [True, True, True] and not kept[4, 3:].any()
    assert block_topk_attention.select(np.ones((1, 1)), k, block_size=2, topk=4).tolist() == [[True, False, True, True, True]]


# --- the command line --------------------------------------------------------------------------------------------------------

class Full(io.StringIO):
    """An output with no room, such as a file on a full disk."""

    def __init__(self, number):
        super().__init__()
        self.fileno = lambda: number

    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("command", [["list"], ["table", "delta_rule"]], ids=" ".join)
def test_no_room_for_the_output(command, monkeypatch, capsys, tmp_path):
    """Status 2, not 1, which says that something was found to be wrong."""
    with open(tmp_path / "out", "w") as file:
        monkeypatch.setattr("sys.stdout", Full(file.fileno()))
        assert main(command) == 2
    assert capsys.readouterr().err == "npattn: the output cannot be written: [Errno 28] No space left on device\n"


def test_a_line_of_the_command_line(capsys):
    for command in ["compare", "no\nfile"], ["list", "x\ny"], ["check", "a\nb"], ["table", "a\nb"]:
        assert main(command) == 2
        assert capsys.readouterr().err.count("\n") == 1


# --- threads -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", [CATALOGUE["normalized_linear_attention"], CATALOGUE["softmax_attention"]], ids=lambda row: row.name)
def test_part_of_a_state_is_shared(row):
    """One of the two arrays of a state has an axis that the other has not: its gradient is one, summed, however the work is spread."""
    x = made(row, lead=(2,))
    for n in 0, 1:
        y = dict(x, state=type(x["state"])(*(part[:1] if i == n else part for i, part in enumerate(x["state"]))))
        for form in FORMS:
            vjp = getattr(row.module, form + "_vjp")
            alone, spread_out = (f(np.ones((2, 5, 3)), **y)["state"] for f in (vjp, spread(vjp, 2)))
            for got, wanted in zip(spread_out, alone, strict=True):
                assert got.shape == wanted.shape and np.allclose(got, wanted)


@pytest.mark.parametrize("name, over", [("mask", np.ones((2, 5, 5), bool)), ("bias", np.zeros((2, 5, 5)))])
def test_only_queries_have_heads(name, over):
    """Keys that all heads share make a cache that all heads share, whatever lies over the scores of each."""
    x = dict(made(CATALOGUE["softmax_attention"], state=False), q=np.ones((2, 5, 4)))
    for form in "loop", "matrix", "chunk":
        o, cache = spread(getattr(softmax_attention, form), 2)(**x, **{name: over})
        assert o.shape == (2, 5, 3) and cache.k.shape == (5, 4) and cache.v.shape == (5, 3)


# --- packed ------------------------------------------------------------------------------------------------------------------

def refuses(kind, words, call):
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), caught.value


def test_packed_states_of_other_kinds():
    """Each is named, state or dfinal_state, before anything looks inside."""
    row = CATALOGUE["gated_delta_rule"]
    x = {name: y for name, y in made(row).items() if name != "state"}
    two, one, call = np.ones((2, 4, 3)), np.ones((5, 3)), dict(cu_seqlens=[0, 2, 5])
    for wrong, kind in (5, TypeError), ([1.], TypeError), ("a", TypeError), ({}, TypeError), ((two,), TypeError), (Cache(two, two), TypeError), \
            (two.astype(int), TypeError), (two[:1], ValueError), (np.ones(()), ValueError):
        refuses(kind, ["state"], lambda: packed(row.module.loop, **x, **call, state=wrong))
        refuses(kind, ["dfinal_state"], lambda: packed_vjp(row.module.loop_vjp, one, **x, **call, dfinal_state=wrong))
    x, two = made(CATALOGUE["softmax_attention"], state=False), np.ones((2, 4))
    for wrong in 5, two, Cache(1, 2), Cache(two, None), Normalized(two, two):
        refuses(TypeError, ["state[1]"], lambda: packed(softmax_attention.loop, x["q"], x["k"], x["v"], **call, state=[None, wrong]))


def test_packed_caches_with_more_axes_than_the_tokens():
    x = made(CATALOGUE["softmax_attention"], state=False)
    states = [None, Cache(np.ones((2, 1, 4)), np.ones((2, 1, 3)))]
    refuses(ValueError, ["state", "(2, 3)", "(2, 3, 3)"], lambda: packed(softmax_attention.loop, x["q"], x["k"], x["v"], cu_seqlens=[0, 2, 5], state=states))


def test_offsets_that_make_no_array():
    class OnDevice:
        def __array__(self, *args, **kwargs):
            raise TypeError("implicit conversion")

    x = made(CATALOGUE["linear_attention"], state=False)
    for offsets in [[0], [2, 5]], OnDevice(), np.ones((3, 3)):
        refuses(ValueError, ["cu_seqlens must be a list"], lambda: packed(linear_attention.loop, x["q"], x["k"], x["v"], cu_seqlens=offsets))


def test_what_is_no_form():
    for form in linear_attention, lambda **x: 1, None, np.exp:
        refuses(TypeError, ["is no form of a mechanism"], lambda: packed(form, *[np.ones((2, 2))] * 3, cu_seqlens=[0, 2]))


def test_keys_and_values_lie_in_order():
    """Where all heads share what is cached and what is new, NumPy joins the two with the heads innermost: sums over keys then round otherwise."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 9, 4)), rng.standard_normal((9, 4)), rng.standard_normal((9, 2))
    heads, shared = np.ones((3, 1, 1)), Cache(rng.standard_normal((5, 4)), rng.standard_normal((1, 5, 2)))
    for form in FORMS:
        once = run(CATALOGUE["softmax_attention"], form, dict(q=q, k=k, v=v, state=Cache(heads * shared.k, shared.v)))[1]
        assert once.v.shape == (3, 14, 2) and once.k.flags.c_contiguous and once.v.flags.c_contiguous


@pytest.mark.parametrize("lead", [(0, 2), (0, 1)])
@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_no_queries_but_a_gradient_of_the_last_state(row, lead):
    """What the last state passes back does not depend on queries: q alone has an axis of length 0."""
    x = row.arguments(np.random.default_rng(0), 5, lead=(2,), K=2, V=3)
    o, last = row.module.loop(**x, **row.options)
    dlast = map_state(lambda y: np.random.default_rng(1).standard_normal(y.shape), last)
    wanted = row.module.loop_vjp(np.zeros_like(o), **x, **row.options, dfinal_state=dlast)
    none = np.zeros(lead + x["q"].shape[1:])
    for vjp, more in (row.module.loop_vjp, {}), (row.module.matrix_vjp, {}), (row.module.chunk_vjp, dict(chunk_size=2)):
        got = vjp(np.zeros((0,) + o.shape), **dict(x, q=none), **row.options, **more, dfinal_state=dlast)
        assert got["q"].shape == none.shape
        for name in wanted.keys() - {"q"}:
            for a, b in zip(leaves(got[name]), leaves(wanted[name]), strict=True):
                assert a.shape == b.shape and np.abs(a - b).max() <= 1e-12 * (1 + np.abs(b).max()), name
