"""Partial rotary embedding: the first R channels turn with the position, in pairs (i, i + R/2).

    f[i]       = theta^(-2 i / R)                        i = 0 … R/2 - 1
    a[t, i]    = position[t] f[i]
    y[i]       = x[i] cos a - x[i + R/2] sin a
    y[i + R/2] = x[i + R/2] cos a + x[i] sin a
    y[R:]      = x[R:]                                   untouched

Su et al., 2021, arXiv 2104.09864, in the half-split order of Hugging Face; R = `width` = head_dim * partial_rotary_factor, even.  The
product of a query and a key then depends on the difference of their positions only.

x, y (..., T, D); positions (..., T), integers that broadcast against x's axes.  With `section` (Qwen3.5, which counts time, height and
width apart; in text the three are equal) positions is (3, ..., T), and frequency i counts height if i = 1 mod 3 and i < 3 section[1], width
if i = 2 mod 3 and i < 3 section[2], else time.
"""
from ..core.arguments import check_array
from ..core.arrays import array_module


def forward(x, positions, *, width, theta=10000.0, section=None):
    """x turned to its positions, of x's shape and type.

    Raises ValueError for a width that is odd or wider than x and for positions that do not fit, TypeError for such as are no integers.

    >>> import numpy as np
    >>> print(forward(np.array([[1., 0, 5], [1, 0, 5]]), np.array([0, 1]), width=2).round(4))
    [[1.     0.     5.    ]
     [0.5403 0.8415 5.    ]]
    """
    return turn(x, *tables_for(x, positions, width, theta, section))


def vjp(dy, x, positions, *, width, theta=10000.0, section=None):
    """dx = dy turned back: the transpose of a rotation is the rotation by the opposite angle."""
    cos, sin = tables_for(x, positions, width, theta, section)
    return turn(dy, cos, -sin)


def turn(x, cos, sin):
    """x turned by the angles whose cosines and sines are given, both (..., T, R/2)."""
    h = cos.shape[-1]
    u, w = x[..., :h], x[..., h:2 * h]                                       # T R/2, T R/2
    return array_module(x).concatenate([u * cos - w * sin, w * cos + u * sin, x[..., 2 * h:]], axis=-1)


def tables(positions, width, theta=10000.0, section=None):
    """cos a and sin a (..., T, R/2), in float64: a position times a frequency has more digits than float32 holds."""
    xp, h = array_module(positions), width // 2
    positions = positions[..., None]                                         # T 1
    if section is not None:
        i = xp.arange(h)                                                     # R/2
        time, height, wide = positions
        positions = xp.where((i % 3 == 1) & (i < 3 * section[1]), height, xp.where((i % 3 == 2) & (i < 3 * section[2]), wide, time))
    a = positions * theta ** (-2 * xp.arange(h) / max(width, 1))             # T R/2
    return xp.cos(a), xp.sin(a)


def tables_for(x, positions, width, theta, section):
    """The tables in the type of x, after checking that they fit."""
    check_array("x", x)
    if width % 2 or not 0 <= width <= x.shape[-1]:
        raise ValueError(f"width, the number of channels that turn, must be even and at most {x.shape[-1]}, not {width}: x {x.shape}")
    if getattr(getattr(positions, "dtype", None), "kind", "f") not in "iu":
        raise TypeError(f"positions must be an array of integers, not {getattr(positions, 'dtype', type(positions).__name__)}")
    if positions.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"positions must be (..., T), one for each token: positions {positions.shape}, x {x.shape}")
    return [table.astype(x.dtype) for table in tables(positions, width, theta, section)]
