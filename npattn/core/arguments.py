"""What every form does first: check its arguments, scale q, make the state; and what every vjp does last.

A mechanism's file says once which axes its arguments end in, `AXES = dict(q="T K", k="T K", v="T V", g="T", state="K V")`; the axes in
front broadcast.  Arguments whose name is g, or begins with g_, are logarithms of decays and must not be positive.
"""
from fractions import Fraction
from math import isqrt

import numpy

from .affine import UNKNOWN
from .arrays import array_module, sum_to
from .kinds import check_array, check_exponential, count, number             # count: for those who look for it here
from .states import Cache, leaves, map_state, rebuild


def start(axes, q, k, v, *, scale, state, **others):
    """Check, then return (array module, scale times q, the state as arrays of the broadcast shape).

    Raises TypeError for what is missing or no array of floats, complex numbers or objects; ValueError for shapes that do not fit, for a log
    gate that is positive or NaN, and for `scale` where the default is no exact number.  A mechanism without a scale passes 1.  A state that is
    UNKNOWN (core.affine) passes as it is; who gives it has checked the arguments.
    """
    given = dict(q=q, k=k, v=v, **others)
    if state is not UNKNOWN:
        sizes = check(axes, dict(given, state=state))
        state, _ = first_state(axes, given, state, sizes)
    return array_module(q, k, v), q * scale_of(scale, q), state


def start_vjp(axes, do, q, k, v, *, scale, state, dfinal_state, **others):
    """Check, then return (array module, scaled q, state, do, dfinal_state as arrays, new, back).

    new()            a list of zeros to write gradients into, one for each argument but the state, in the order of `axes`
    back(q=…, …)     the gradients, dq times scale, each summed back to its argument's shape and type
    """
    given = dict(q=q, k=k, v=v, **others)
    sizes = check(axes, dict(given, do=do, state=state, dfinal_state=dfinal_state))
    first, dtype = first_state(axes, given, state, sizes)
    xp, lead = array_module(q, k, v), broadcast("o", given, axes, dict(state=first))
    whole = lead + tuple(sizes[x] for x in axes.get("o", "T V").split())
    check_fits("do", do.shape, whole)
    query = q                                             # of no queries at all, one of zeros: what the last state passes back is not lost
    if 0 in lead and 0 not in broadcast("o", {n: x for n, x in given.items() if n != "q"}, axes, dict(state=first)):
        lead, whole = (tuple(n or 1 for n in shape[:len(lead)]) + shape[len(lead):] for shape in (lead, whole))
        query, do = xp.zeros(tuple(n or 1 for n in q.shape[:-2]) + q.shape[-2:], q.dtype), xp.zeros(whole, do.dtype)
    if dfinal_state is None:
        dfinal_state = map_state(xp.zeros_like, first)
    for name, x, y in zip(leaf_names("dfinal_state", axes["state"]), leaves(dfinal_state), leaves(first)):
        check_fits(name, x.shape, y.shape)
    scaled = query * scale_of(scale, q)
    wide = numpy.result_type(dtype, *(x.dtype for x in (scaled, do, *leaves(dfinal_state))))     # one type for all, in every block
    do = widen(do if do.shape == whole else xp.broadcast_to(do, whole), wide)
    dfinal_state = own(map_state(lambda x, y, kind: given_once(widen(x, wide), y.shape, lead + tuple(sizes[n] for n in kind.split())),
                                 dfinal_state, first, axes["state"]), sizes)

    def new():
        return [xp.zeros(lead + tuple(sizes[x] for x in axes[name].split()), wide) for name in axes if name != "state"]

    def back(**gradients):
        gradients["q"] = gradients["q"] * scale_of(scale, q) if query is q else xp.zeros_like(q)
        ends = dict(given, state=first if state is None else state)
        return {name: map_state(fit, gradients[name], ends[name]) for name in ends}

    return xp, scaled, first, do, dfinal_state, new, back


def given_once(x, shape, whole):
    """`x` broadcast to the state's `shape`, then to `whole`, which may have axes that only q has.

    Along those the state is one, not many, so the first copy gets `x` and the others 0.
    """
    xp = array_module(x)
    x = x if x.shape == shape else xp.broadcast_to(x, shape)
    if shape == whole:
        return x
    y = xp.zeros(whole, x.dtype)
    y[tuple(slice(0, n) for n in (1,) * (len(whole) - len(shape)) + shape)] = x
    return y


def fit(gradient, argument):
    """`gradient` in the shape and type of `argument`; a complex gradient of a real argument stays complex."""
    x = sum_to(gradient, argument.shape)
    return x.astype(argument.dtype) if x.dtype != argument.dtype and numpy.can_cast(x.dtype, argument.dtype, "same_kind") else x


def scale_of(scale, q):
    """`scale` as a plain number, which never widens an array; None is K ** -0.5, for object arrays an exact fraction."""
    if scale is not None:
        return number("scale", scale, q)
    K = q.shape[-1]
    if q.dtype != object:
        return max(K, 1) ** -0.5
    if isqrt(K) ** 2 != K or K == 0:
        raise ValueError(f"scale: K ** -0.5 is no fraction for K = {K}; pass scale, q {q.shape}")
    return Fraction(1, isqrt(K))


def first_state(axes, given, state, sizes):
    """(`state`, zeros if None, broadcast over the leading axes of all arguments but q, in the common type; that type)."""
    xp, kinds = array_module(*given.values()), axes["state"]
    dtype = numpy.result_type(*(x.dtype for x in (*given.values(), *leaves(state)) if x is not None))
    lead = broadcast("state", {n: x for n, x in given.items() if n != "q"}, axes, dict(state=state))

    def make(x, kind):
        shape = lead + tuple(sizes[letter] for letter in kind.split())
        if x is None:
            return xp.zeros(shape, dtype)
        x = widen(x, dtype)
        return x if x.shape == shape else xp.broadcast_to(x, shape)

    return own(rebuild(kinds, map(make, leaves(state) or [None] * len(leaves(kinds)), leaves(kinds))), sizes), dtype


def widen(x, dtype):
    return x if x.dtype == dtype else x + array_module(x).zeros((), dtype)


def own(state, sizes):
    """`state`; copied if there is no token, since what comes in then goes out, and would still be the caller's."""
    return state if sizes.get("T") else map_state(lambda x: x.copy(), state)


# --- checks ------------------------------------------------------------------------------------------------------

def check(axes, arguments):
    """The size of every letter in `axes`, after checking the type, shape and gates of all arguments (those that are None are left out).

    A cache has n tokens, 0 if there is none, and leaves with n+N.
    """
    arrays, ends = {}, {}
    for name, x in arguments.items():
        kind = axes[name] if name in axes else axes.get("o", "T V") if name == "do" else final_axes(axes["state"])
        if x is None:
            if name not in ("state", "dfinal_state"):
                raise TypeError(f"{name} is missing: an array (..., {kind.replace(' ', ', ')}) is needed")
        elif isinstance(x, tuple) or isinstance(kind, tuple):
            if type(x) is not type(kind):
                raise TypeError(f"{name} must be {expected(kind)}, not {type(x).__name__}")
            arrays.update(zip(leaf_names(name, kind), x))
            ends.update(zip(leaf_names(name, kind), map(str.split, kind)))
        else:
            arrays[name], ends[name] = x, kind.split()
    for name, x in arrays.items():
        check_array(name, x)
    if len(set(map(array_module, arrays.values()))) > 1:
        raise TypeError("arrays of NumPy and of CuPy cannot be mixed: " + ", ".join(f"{n} {type(x).__module__}" for n, x in arrays.items()))

    sizes, seen, leads = {}, {}, []
    for name, x in arrays.items():
        shape, letters = x.shape, ends[name]
        ahead = len(shape) - len(letters)
        if ahead < 0:
            raise ValueError(f"{name} must end in ({', '.join(letters)}), so have at least {len(letters)} axes: {shapes(arrays)}")
        for letter, n in zip(letters, shape[ahead:]):
            if letter not in sizes:
                sizes[letter], seen[letter] = n, name
            elif sizes[letter] != n:
                raise ValueError(f"{name} must end in ({', '.join(letters)}); "
                                 f"{letter} is {sizes[letter]} in {seen[letter]} and {n} in {name}: {shapes(arrays)}")
        leads.append(shape[:ahead])
    try:
        common(leads)
    except ValueError:
        raise ValueError(f"the leading axes do not broadcast: {shapes(arrays)}") from None
    except RuntimeError:
        raise ValueError(f"more leading axes than NumPy can broadcast, 32: {shapes(arrays)}") from None
    for name, x in arrays.items():
        if name == "g" or name.startswith("g_"):
            check_log_gate(name, x)
    if isinstance(axes["state"], Cache):
        n, N = sizes.setdefault("n", 0), sizes.get("N", 0)
        if sizes.setdefault("n+N", n + N) != n + N:
            raise ValueError(f"dfinal_state must have {n} cached and {N} new tokens: {shapes(arrays)}")
    return sizes


def final_axes(kind):
    """The axes of the returned state: those of `state`, but a cache has grown from n tokens to n+N.

    >>> final_axes("K V"), final_axes(Cache("n K", "n V"))
    ('K V', Cache(k='n+N K', v='n+N V'))
    """
    return map_state(lambda part: part.replace("n", "n+N"), kind) if isinstance(kind, Cache) else kind


def check_log_gate(name, g):
    """ValueError if a gate is positive or NaN.  Arrays on a device are not looked at: that would wait for it."""
    if array_module(g) is not numpy:
        return
    check_exponential(name, g)
    g = g.real if g.dtype.kind == "c" else g
    if g.size and not g.max() <= 0:                       # of an array with NaN, NaN is the maximum
        raise ValueError(f"{name} is the natural log of a decay, at most 0 and never NaN: {name} {g.shape} has "
                         f"{'a positive value' if (g > 0).any() else 'NaN'}")


def check_fits(name, shape, whole):
    """ValueError unless `shape` is `whole` or broadcasts to it."""
    if len(shape) > len(whole) or any(a not in (1, b) for a, b in zip(shape[::-1], whole[::-1])):
        raise ValueError(f"{name} {shape} does not fit {whole}")


def broadcast(name, arrays, axes, more):
    """The common leading shape of `arrays` and of the leaves of the states in `more`."""
    leads = [x.shape[:x.ndim - len(axes[n].split())] for n, x in arrays.items() if x is not None]
    for n, state in more.items():
        leads += [x.shape[:x.ndim - len(kind.split())] for x, kind in zip(leaves(state), leaves(axes[n]))]
    return common(leads)


def common(shapes):
    """What the shapes broadcast to."""
    return shapes[0] if shapes and shapes.count(shapes[0]) == len(shapes) else numpy.broadcast_shapes(*shapes)


def leaf_names(name, kind):
    return [f"{name}.{field}" for field in kind._fields] if isinstance(kind, tuple) else [name]


def expected(kind):
    return f"a {type(kind).__name__}" if isinstance(kind, tuple) else "an array"


def shapes(arrays):
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in arrays.items())
