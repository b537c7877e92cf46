"""Softmax, gates and norms, and by hand the gradient of each: NAME_vjp(dy, …) is the gradient of sum(NAME(…) dy).

Every function keeps the type of its argument.  All are analytic: what is only there to keep numbers in range cancels, and maxima go by the
real part (NumPy orders complex numbers by it), so that complex arguments, and with them the complex step, work.  -inf is a value like any
other; a +inf or NaN that leaves no limit gives NaN.  Neither makes NumPy warn.
"""
from .arguments import fit
from .arrays import array_module
from .kinds import number


# --- softmax -----------------------------------------------------------------------------------------------------

def softmax(x, axis=-1):
    """y = e^x / sum(e^x), of x's shape; a row that is -inf everywhere gives zeros.

    >>> import numpy as np
    >>> print(softmax(np.log(np.array([1., 2, 1]))), softmax(np.array([-np.inf, -np.inf])))
    [0.25 0.5  0.25] [0. 0.]
    """
    xp = array_module(x)
    e = xp.exp(x - finite(highest(x.real, axis, -xp.inf)))
    total = e.sum(axis, keepdims=True)
    return e / xp.where(total == 0, 1, total)


def softmax_vjp(dy, x, axis=-1):
    """dx = y (dy - sum(y dy)); zero wherever y is.

    >>> import numpy as np
    >>> print(softmax_vjp(np.array([8., 0, 0]), np.log(np.array([1., 2, 1]))))
    [ 1.5 -1.  -0.5]
    """
    y = softmax(x, axis)
    return y * (dy - (y * dy).sum(axis, keepdims=True))


def logsumexp(x, axis=-1):
    """y = ln(sum(e^x)), of x's shape without `axis`; of a row that is -inf everywhere, or empty, -inf.

    >>> import numpy as np
    >>> print(logsumexp(np.array([[1000., -np.inf], [-np.inf, -np.inf]])))
    [1000.  -inf]
    """
    xp = array_module(x)
    m = highest(x.real, axis, -xp.inf)
    c = finite(m)
    total = xp.exp(x - c).sum(axis, keepdims=True)
    y = xp.where(c == m, c + xp.log(xp.where(total == 0, 1, total)), m)      # an infinite m is the answer itself
    return y.squeeze(axis)


def logsumexp_vjp(dy, x, axis=-1):
    """dx = softmax(x) dy, of x's shape, for dy of the shape of y.

    >>> import numpy as np
    >>> print(logsumexp_vjp(np.array(4.), np.log(np.array([1., 2, 1]))))
    [1. 2. 1.]
    """
    return softmax(x, axis) * array_module(x).expand_dims(dy, axis)


def highest(x, axis, empty):
    """Maximum over `axis`, which stays with length 1; `empty` where there is nothing."""
    return x.max(axis, keepdims=True) if x.shape[axis] else x.sum(axis, keepdims=True) + empty


def finite(m):
    """m, with 0 for -inf and NaN for inf: what may be subtracted from an infinite x."""
    xp = array_module(m)
    return xp.where(m == -xp.inf, 0, xp.where(m < xp.inf, m, xp.nan))


# --- gates -------------------------------------------------------------------------------------------------------

def sigmoid(x):
    """y = 1 / (1 + e^-x) = e^min(x, 0) / (1 + e^-|x|): no exponent is positive.

    >>> import numpy as np
    >>> print(sigmoid(np.array([-np.inf, -np.log(3), 0, np.log(3), 1000])))
    [0.   0.25 0.5  0.75 1.  ]
    """
    xp = array_module(x)
    return xp.exp(xp.minimum(x, 0)) / (1 + xp.exp(xp.minimum(x, -x)))


def sigmoid_vjp(dy, x):
    """dx = y (1 - y) dy, where 1 - y is the sigmoid of -x.

    >>> import numpy as np
    >>> print(sigmoid_vjp(np.array(16.), np.log(np.array(3.))))
    3.0
    """
    return dy * sigmoid(x) * sigmoid(-x)


def silu(x):
    """y = x sigmoid(x), also called swish; 0 at -inf.

    >>> import numpy as np
    >>> print(silu(np.array([-np.inf, -1, 0, 1])))
    [ 0.         -0.26894142  0.          0.73105858]
    """
    return times(x, sigmoid(x))


def silu_vjp(dy, x):
    """dx = (s + x s (1 - s)) dy with s = sigmoid(x).

    >>> import numpy as np
    >>> print(silu_vjp(np.array([2., 2, 2]), np.array([-np.inf, 0, np.inf])))
    [0. 1. 2.]
    """
    s = sigmoid(x)
    return dy * (s + times(x, s * sigmoid(-x)))


def times(x, y):
    """x y, and 0 where y is, an infinite x included: y falls faster than x grows."""
    return array_module(x).where(y == 0, 0, x) * y


def softplus(x):
    """y = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).

    With e = e^-|x| the last term is written 2 artanh(e / (2 + e)), which keeps the digits of a small e in complex arithmetic too.

    >>> import numpy as np
    >>> print(softplus(np.array([-np.inf, -1000, 0, 1000])))
    [0.00000000e+00 0.00000000e+00 6.93147181e-01 1.00000000e+03]
    """
    xp = array_module(x)
    e = xp.exp(xp.minimum(x, -x))
    return xp.maximum(0, x) + 2 * xp.arctanh(e / (2 + e))


def softplus_vjp(dy, x):
    """dx = sigmoid(x) dy.

    >>> import numpy as np
    >>> print(softplus_vjp(np.array([1., 8, 1]), np.array([-1000., 0, 1000])))
    [0. 4. 1.]
    """
    return dy * sigmoid(x)


# --- norms -------------------------------------------------------------------------------------------------------

def l2norm(x, axis=-1, eps=1e-6):
    """y = x / sqrt(sum(x^2) + eps): eps stands inside the root and is added to the sum, not to the mean.

    >>> import numpy as np
    >>> print(l2norm(np.array([3., 4]), eps=0), l2norm(np.array([3e-3, 4e-3]), eps=1e-6 * 144), l2norm(np.zeros(2)))
    [0.6 0.8] [0.23076923 0.30769231] [0. 0.]
    """
    u, r, _ = scaled(x, axis, eps)
    return u / r


def l2norm_vjp(dy, x, axis=-1, eps=1e-6):
    """dx = (dy - y sum(y dy)) / sqrt(sum(x^2) + eps).

    >>> import numpy as np
    >>> print(l2norm_vjp(np.array([125., 0]), np.array([3., 4]), eps=0))
    [ 16. -12.]
    """
    u, r, m = scaled(x, axis, eps)
    y = u / r
    return (dy - y * (y * dy).sum(axis, keepdims=True)) / r / m


def scaled(x, axis, eps):
    """(x / m, sqrt(sum(x^2) + eps) / m, m) with m = max(|x|, sqrt(eps)): the squares of x itself overflow from 1e19 on in float32.

    Where all of that is zero, x / m is 0 and so is what is divided by m.
    """
    xp, root = array_module(x), number("eps", eps, x) ** 0.5
    m = xp.maximum(highest(xp.abs(x.real), axis, 0), root)
    m = xp.where(m == 0, xp.inf, xp.where(m < xp.inf, m, xp.nan))
    u = x / m
    r = xp.sqrt((u * u).sum(axis, keepdims=True) + (root / m) ** 2)
    return u, xp.where(r == 0, 1, r), m


def rms_norm(x, weight, eps=1e-6):
    """y = (1 + w) x / sqrt(mean(x^2) + eps) over the last axis: x (..., D), weight (D), which is stored as the offset from 1.

    >>> import numpy as np
    >>> print(rms_norm(np.array([1., 7]), np.array([0., 1]), eps=0))
    [0.2 2.8]
    """
    return unit(x, eps) * (1 + weight)


def rms_norm_vjp(dy, x, weight, eps=1e-6):
    """(dx, dweight), each of its argument's shape.

    >>> import numpy as np
    >>> dx, dweight = rms_norm_vjp(np.array([[1., 1], [1, 0]]), np.array([[1., 7], [7, 1]]), np.array([0., 0]), eps=0)
    >>> print(dweight)
    [1.6 1.4]
    """
    return fit(unit_vjp(dy * (1 + weight), x, eps), x), fit(dy * unit(x, eps), weight)


def gated_rms_norm(x, z, weight, eps=1e-6):
    """y = w n silu(z), n = x / sqrt(mean(x^2) + eps): the norm first, then the gate.  x, z (..., D), weight (D), used as it is stored.

    >>> import numpy as np
    >>> print(gated_rms_norm(np.array([1., 7]), np.array([-1., 0]), np.array([5., 1]), eps=0))
    [-0.26894142  0.        ]
    """
    return weight * unit(x, eps) * silu(z)


def gated_rms_norm_vjp(dy, x, z, weight, eps=1e-6):
    """(dx, dz, dweight), each of its argument's shape.

    >>> import numpy as np
    >>> dx, dz, dweight = gated_rms_norm_vjp(np.array([1., 1]), np.array([1., 7]), np.array([0., 0]), np.array([5., 1]), eps=0)
    >>> print(dx, dz, dweight)
    [0. 0.] [0.5 0.7] [0. 0.]
    """
    n, s = unit(x, eps), silu(z)
    return fit(unit_vjp(dy * weight * s, x, eps), x), fit(silu_vjp(dy * weight * n, z), z), fit(dy * n * s, weight)


def unit(x, eps):
    """x / sqrt(mean(x^2) + eps) = sqrt(D) x / sqrt(sum(x^2) + D eps)."""
    D = x.shape[-1]
    return D ** 0.5 * l2norm(x, eps=D * number("eps", eps, x))


def unit_vjp(dy, x, eps):
    D = x.shape[-1]
    return l2norm_vjp(D ** 0.5 * dy, x, eps=D * number("eps", eps, x))
