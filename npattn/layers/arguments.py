"""What layers are called with, checked in one place, so that nothing is broadcast in silence."""
from ..core.arguments import common
from ..core.kinds import check_array


def check_linear(x, W, name, dy=None):
    """TypeError or ValueError unless x ends in as many channels as W takes, and dy (if there is one) has y's shape."""
    check_array("x", x)
    if W.ndim != 2 or x.shape[-1:] != W.shape[1:]:
        raise ValueError(f"{name}.weight {W.shape} does not fit x {x.shape}: its last axis must be x's")
    if dy is not None:
        check_gradient(dy, x.shape[:-1] + W.shape[:1])


def check_gradient(dy, shape):
    check_array("dy", dy)
    if dy.shape != shape:
        raise ValueError(f"dy must have the shape of y, {shape}: dy {dy.shape}")


def check_tokens(x, mask, n=0):
    """TypeError or ValueError unless x is (..., T, C) and mask, if there is one, booleans (..., n + T)."""
    check_array("x", x)
    if x.ndim < 2:
        raise ValueError(f"x must end in (T, C), so have at least 2 axes: x {x.shape}")
    if mask is None:
        return
    if getattr(getattr(mask, "dtype", None), "kind", None) != "b":
        raise TypeError(f"mask must be an array of booleans, True for real tokens, not {getattr(mask, 'dtype', type(mask).__name__)}")
    if mask.shape[-1:] != (n + x.shape[-2],):
        raise ValueError(f"mask must end in {n + x.shape[-2]}, {n} cached and {x.shape[-2]} new tokens: mask {mask.shape}, x {x.shape}")
    try:
        common([mask.shape[:-1], x.shape[:-2]])
    except ValueError:
        raise ValueError(f"the leading axes do not broadcast: mask {mask.shape}, x {x.shape}") from None


def check_state(name, state, kind):
    """TypeError unless `state` is None or of the named tuple `kind`."""
    if state is not None and type(state) is not kind:
        raise TypeError(f"{name} must be a {kind.__name__}({', '.join(kind._fields)}) or None, not {type(state).__name__}")


def check_tables(cos, sin, x, width):
    """TypeError or ValueError unless there is a row of cosines and sines for every token, and no more than `width` channels turn."""
    check_array("cos", cos)
    check_array("sin", sin)
    if cos.shape != sin.shape or cos.shape[-2:-1] != x.shape[-2:-1] or 2 * cos.shape[-1] > width:
        raise ValueError(f"cos and sin must be (..., T, R/2), R at most {width}: cos {cos.shape}, sin {sin.shape}, x {x.shape}")
