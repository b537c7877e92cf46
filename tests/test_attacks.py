"""What once broke, or could: odd numbers, odd shapes, odd files.  Each case is the smallest that showed the fault."""
import io
import struct
import zipfile
from fractions import Fraction

import numpy as np
import pytest

from npattn.compare import DumpError, check_dump
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
