"""A tape: reverse-mode differentiation of unchanged NumPy code.

    y, pull = vjp(f, *arrays)        the value, and the map from a gradient with respect to y to the gradients with respect to the arrays
    grad(f)(*arrays)                 the gradients of a scalar f with respect to every array

f is called with traced arrays.  Whatever it computes with them NumPy hands over (`__array_ufunc__`, `__array_function__`), and the result
is written down with its sources and its formula.  `pull` reads the list backwards: nothing depends on what was written later, so the list
is its own topological order, however long.  Floats, complex numbers (as holomorphic functions: transposed, never conjugated; `.real` counts
as a constant) and object arrays of fractions alike; nothing is converted.  Traced arrays are never written to: what assigns into one or
asks for `out=` raises TypeError.

Differentiated: absolute add arctanh broadcast_to concatenate copy cos cumprod cumsum diagonal divide exp expand_dims expm1 flip log log1p
    logaddexp matmul matrix_transpose max maximum mean min minimum moveaxis multiply negative positive power prod ravel reciprocal repeat
    reshape roll sin sliding_window_view split sqrt square squeeze stack subtract sum swapaxes take take_along_axis tanh tile transpose
    tril triu where, and indexing.
Answered as plain arrays: all any argmax argmin argsort array_equal count_nonzero equal full_like greater greater_equal iscomplexobj
    isfinite isinf isnan less less_equal logical_and logical_not logical_or ndim not_equal ones_like result_type shape sign size zeros_like.
Any other function raises a TypeError that names it.
"""
import operator
from numbers import Number

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .derivatives import ALONG, ELEMENTWISE, MOVING, PLAIN, REDUCING, zeros

SUPPORTED = tuple(sorted(function.__name__ for function in {*ELEMENTWISE, *REDUCING, *ALONG, *MOVING}))


def vjp(f, *arrays):
    """(f(*arrays), pull): pull(cotangents) gives a tuple of gradients, each of its array's shape and type.

    Arrays, results and cotangents may be nested in tuples, lists and named tuples; a cotangent None, for any part, is zero.

    >>> y, pull = vjp(lambda a, b: (a * b, a.sum()), np.array([1., 2]), np.array([3., 4]))
    >>> pull((np.array([1., 10]), None))
    (array([ 3., 40.]), array([ 1., 20.]))
    """
    tape = []
    inputs = walk(lambda x: Traced(check(x), tape), arrays)
    outputs = f(*inputs)
    walk(lambda y: check_result(y, tape), outputs)
    count = len(leaves(inputs))

    def pull(cotangents):
        parts = [[] for _ in tape]                                   # of each node's gradient: (where in the array, what to add)
        for node, g in seeds(outputs, cotangents):
            parts[node.position].append((..., g))
        for node in reversed(tape[count:]):
            received, parts[node.position] = parts[node.position], None
            if received:
                for source, part in zip(node.sources, node.formula(total(node, received))):
                    parts[source.position].append(part)
        return walk(lambda x: total(x, parts[x.position]), inputs)

    return walk(plain, outputs), pull


def grad(f):
    """The function that gives the gradients of a scalar f with respect to every array, as a tuple.

    >>> grad(lambda x: (x * x).sum())(np.array([1., 2]))
    (array([2., 4.]),)
    """
    def gradients(*arrays):
        y, pull = vjp(f, *arrays)
        if np.shape(y) != ():
            raise ValueError(f"grad: f must give a single number, not an array {np.shape(y)}")
        return pull(zeros((), np.asarray(y).dtype) + 1)
    return gradients


class Traced(NDArrayOperatorsMixin):
    """A value, its place on the tape, the arrays that it came from, and the formula from its gradient to theirs."""

    def __init__(self, value, tape, sources=(), formula=None):
        if any(source.tape is not tape for source in sources):
            raise TypeError("the tape: arrays of two tapes meet, as in a gradient within a gradient; "
                            "pass what the inner function needs as its argument")
        self.value, self.tape, self.sources, self.formula, self.position = value, tape, sources, formula, len(tape)
        tape.append(self)

    def __array_ufunc__(self, ufunc, method, *args, **kwargs):
        if ufunc not in PLAIN and ufunc not in ELEMENTWISE or method != "__call__" or kwargs:
            raise unsupported(f"{ufunc.__name__}.{method}".removesuffix(".__call__"), kwargs)
        if ufunc is np.absolute and self.dtype.kind == "c":
            raise TypeError("the tape: absolute of a complex number is not holomorphic")
        return plain_call(ufunc, args, kwargs) if ufunc in PLAIN else elementwise(ufunc, args)

    def __array_function__(self, function, types, args, kwargs):
        for table, record, allowed in ((PLAIN, plain_call, kwargs), (ELEMENTWISE, elementwise, ()), (REDUCING, reducing, ("axis", "keepdims")),
                                       (ALONG, along, ("axis",)), (MOVING, moving, kwargs.keys() - {"out", "dtype"})):
            if function in table and args and kwargs.keys() <= set(allowed):
                return record(function, args, kwargs)
        raise unsupported(f"{function.__module__}.{function.__name__}".removeprefix("numpy."), kwargs)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("the tape: a traced array cannot become a NumPy array, nor be assigned into one; use concatenate, stack or where")

    def __getitem__(self, index):
        return Traced(array(self.value[index]), self.tape, (self,), lambda g: [(index, g)])

    def __setitem__(self, index, value):
        raise TypeError("the tape: a traced array cannot be assigned into; use concatenate, stack or where")

    @property
    def strides(self): raise TypeError("the tape: a traced array has no strides; of a mechanism it differentiates `loop`")

    def __len__(self): return len(self.value)
    def __bool__(self): return bool(self.value)
    def __repr__(self): return f"Traced({self.value!r})"

    T = property(lambda self: np.transpose(self))
    mT = property(lambda self: np.matrix_transpose(self))
    real = property(lambda self: self.value.real if self.dtype.kind == "c" else self)

    def reshape(self, *shape): return np.reshape(self, shape[0] if len(shape) == 1 else shape)
    def transpose(self, *axes): return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)


def method(function):
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


for name in "shape", "ndim", "size", "dtype":
    setattr(Traced, name, property(operator.attrgetter(f"value.{name}")))
for name in "all any argmax argmin argsort copy cumprod cumsum diagonal max mean min prod ravel repeat squeeze sum swapaxes take".split():
    setattr(Traced, name, method(getattr(np, name)))


# --- the five kinds of function ------------------------------------------------------------------------------------

def plain_call(function, args, kwargs):
    return function(*walk(plain, args), **{name: walk(plain, x) for name, x in kwargs.items()})


def elementwise(function, args, kwargs=None):
    values, formulas = walk(plain, args), ELEMENTWISE[function]
    traced = [n for n, x in enumerate(args) if isinstance(x, Traced) and formulas[n]]
    y = array(function(*values))
    return Traced(y, args[traced[0]].tape, [args[n] for n in traced],
                  lambda g: [(..., unbroadcast(formulas[n](g, y, *values), values[n].shape)) for n in traced]) if traced else y


def reducing(function, args, kwargs):
    def record(x, axis=None, keepdims=False):
        kept = array(function(x.value, axis=axis, keepdims=True))
        y = kept if keepdims else array(function(x.value, axis=axis))
        return Traced(y, x.tape, (x,), lambda g: [(..., REDUCING[function](g.reshape(kept.shape), kept, x.value, axis))])
    return record(*args, **kwargs)


def along(function, args, kwargs):
    def record(x, axis=None):
        if axis is None:
            x, axis = np.ravel(x), 0
        y = function(x.value, axis)
        return Traced(y, x.tape, (x,), lambda g: [(..., ALONG[function](g, y, x.value, axis))])
    return record(*args, **kwargs)


def moving(function, args, kwargs):
    many = isinstance(args[0], (list, tuple))
    sources, numbers, n = [], [], 1
    for x in args[0] if many else args[:1]:
        where = np.zeros(np.shape(x), int)
        if isinstance(x, Traced):
            where = np.arange(n, n + x.size).reshape(x.shape)
            sources, n = [*sources, (x, n)], n + x.size
        numbers.append(where)
    rest = walk(plain, args[1:])

    def record(value, where):
        def formula(g):
            flat = zeros(n, g.dtype)
            np.add.at(flat, where, g)
            return [(..., flat[start:start + x.size].reshape(x.shape)) for x, start in sources]
        return Traced(value, sources[0][0].tape, [x for x, _ in sources], formula)

    value = function(walk(plain, args[0]), *rest, **kwargs)
    where = function(numbers if many else numbers[0], *rest, **kwargs)
    return [record(*pair) for pair in zip(value, where)] if isinstance(value, list) else record(value, where)


# --- helpers -------------------------------------------------------------------------------------------------------

def total(node, parts):
    """The gradient of a node: all its parts added up.  A complex part makes the gradient of a real array complex."""
    dtype = node.dtype
    if dtype.kind == "f" and any(np.iscomplexobj(part) for _, part in parts):
        dtype = np.result_type(dtype, np.complex64)
    g = zeros(node.shape, dtype)
    for index, part in parts:
        if any(isinstance(i, (list, np.ndarray)) for i in (index if isinstance(index, tuple) else (index,))):
            np.add.at(g, index, part)                                # an entry may be taken more than once
        else:
            g[index] += part
    return g


def unbroadcast(part, shape):
    """The sum over all axes along which `shape` was repeated."""
    part = part.sum(tuple(range(np.ndim(part) - len(shape)))) if np.ndim(part) > len(shape) else part
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and np.shape(part)[i] != 1)
    return part.sum(axes, keepdims=True) if axes else part


def array(x):
    """A result as an array: what NumPy takes out of an object array goes back into one."""
    return x if isinstance(x, np.ndarray) else np.asarray(x, None if isinstance(x, np.generic) else object)


def plain(x):
    return x.value if isinstance(x, Traced) else x


def walk(f, x):
    """f on every leaf of nested tuples, lists and named tuples; None stays None."""
    if isinstance(x, (tuple, list)):
        parts = [walk(f, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x if x is None else f(x)


def leaves(x):
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, (tuple, list)) else [] if x is None else [x]


def seeds(outputs, cotangents):
    """Pairs of a traced result and its cotangent."""
    if cotangents is None or outputs is None:
        return
    if isinstance(outputs, (tuple, list)):
        if not isinstance(cotangents, (tuple, list)) or len(cotangents) != len(outputs):
            raise ValueError(f"pull: f gives {len(outputs)} results, so there must be {len(outputs)} cotangents (None for zero)")
        for pair in zip(outputs, cotangents):
            yield from seeds(*pair)
    elif np.shape(cotangents) != np.shape(outputs):
        raise ValueError(f"pull: a cotangent {np.shape(cotangents)} for a result {np.shape(outputs)}")
    elif isinstance(outputs, Traced):
        yield outputs, cotangents


def check(x):
    if getattr(getattr(x, "dtype", None), "kind", "") not in ("f", "c", "O"):
        raise TypeError(f"vjp: arrays must be NumPy arrays of floats, complex numbers or objects, not {getattr(x, 'dtype', type(x).__name__)}")
    return array(x)


def check_result(y, tape):
    if isinstance(y, Traced) and y.tape is not tape:
        raise TypeError("vjp: f gives an array of another tape, whose gradient would be lost")
    if not hasattr(y, "dtype") and not isinstance(y, Number):
        raise TypeError(f"vjp: f must give arrays and numbers, in tuples and lists, not a {type(y).__name__}")


def unsupported(name, kwargs):
    options = "".join(f" with {k}=" for k in kwargs)
    return TypeError(f"the tape does not support numpy.{name}{options}; npattn.proof.SUPPORTED lists what it differentiates")
