"""What may stand for an array, a number, a count, a flag; TypeError or ValueError, in one line that names it, for what may not."""
from numbers import Number

import numpy


def check_array(name, x):
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if type(x) is numpy.ndarray and kind in "fc":                            # as nearly always
        return
    if kind is None or not hasattr(x, "__array_ufunc__"):
        raise TypeError(f"{name} must be a NumPy or CuPy array, not {type(x).__name__}")
    check_plain(name, x)
    if kind not in "fcO":
        raise TypeError(f"{name} must hold floats, complex numbers or objects such as fractions, not {x.dtype}")
    check_objects(name, x, is_number, "which are no numbers")


def check_plain(name, x):
    if isinstance(x, (numpy.ma.MaskedArray, numpy.matrix)):
        raise TypeError(f"{name} must be a plain array, not a {type(x).__name__}")


def check_objects(name, x, fine, why):
    """TypeError unless all entries of an object array are `fine`."""
    if x.dtype == object and isinstance(x, numpy.ndarray):
        for entry in x.flat:
            if not fine(entry):
                raise TypeError(f"{name} {x.shape} holds objects of type {type(entry).__name__}, {why}")


def check_exponential(name, x):
    """TypeError for objects without an exponential, such as fractions."""
    check_objects(name, x, lambda entry: hasattr(entry, "exp"),
                  "which have no exact exponential; npattn.proof.log makes some that have one, of fractions")


def number(name, x, array):
    """`x` as a plain number, which never widens `array`; TypeError for what is none.  For object arrays a fraction stays one."""
    y = x.item() if hasattr(x, "item") and getattr(x, "shape", None) == () else x
    if getattr(y, "shape", ()) != () or isinstance(y, bool) or not is_number(y):
        raise TypeError(f"{name} must be one number, not {f'an array {y.shape}' if hasattr(y, 'shape') else repr(y)}")
    if array.dtype == object or isinstance(y, (int, float, complex)) or not isinstance(y, Number):
        return y
    z = numpy.complex128(y).item()
    return z if z.imag else z.real


def is_number(x):
    """What adds and multiplies, as text and lists do not."""
    return hasattr(x, "__mul__") and hasattr(x, "__sub__") and not isinstance(x, type)


def count(name, n):
    """`n` as an int; ValueError unless it is an integer of at least 1."""
    if isinstance(n, bool) or not isinstance(n, (int, numpy.integer)) or n < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {n!r}")
    return int(n)


def flag(name, x):
    """`x` as True or False; TypeError for what is neither, such as the text "False"."""
    if not isinstance(x, (bool, numpy.bool_, int)) or x not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {x if isinstance(x, int) else type(x).__name__}")
    return bool(x)
