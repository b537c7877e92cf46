"""Feature maps phi for linear attention, which replaces e^(q . k) by phi(q) . phi(k), and by hand the gradient of each.

Maps act on the last axis, x (..., K), and keep the type of x; NAME_vjp(dy, x) is the gradient of sum(NAME(x) dy), of x's shape.
Identity, relu, squared_relu and taylor work on fractions.  All are analytic on either side of 0 and follow the real part of a complex x.
A map without bound (exp, squared_relu, taylor) overflows where its value does, and NumPy says so.
"""
from fractions import Fraction

from .arrays import array_module
from .functions import softmax, softmax_vjp
from .kinds import number


def identity(x):
    """phi(x) = x: (..., K) to (..., K)."""
    return x


def identity_vjp(dy, x):
    return dy


def elu_plus_one(x):
    """phi(x) = max(x, 0) + e^min(x, 0), so x + 1 above 0 and e^x below: (..., K) to (..., K), never negative.

    Katharopoulos et al., 2020, arXiv 2006.16236.

    >>> import numpy as np
    >>> print(elu_plus_one(np.array([-np.inf, -np.log(4), 0, 2])))
    [0.   0.25 1.   3.  ]
    """
    return array_module(x).maximum(0, x) + exp_below_0(x)


def elu_plus_one_vjp(dy, x):
    """dx = dy above 0, e^x dy below.

    >>> import numpy as np
    >>> print(elu_plus_one_vjp(np.array([4., 4, 4]), np.array([-np.log(4), 0, 2])))
    [1. 4. 4.]
    """
    return dy * exp_below_0(x)


def exp_below_0(x):
    """e^x where x is negative, 1 elsewhere."""
    xp = array_module(x)
    return xp.exp(xp.minimum(x, 0))


def relu(x):
    """phi(x) = max(x, 0): (..., K) to (..., K).

    >>> import numpy as np
    >>> print(relu(np.array([-2., 0, 3])))
    [0. 0. 3.]
    """
    return array_module(x).maximum(0, x)


def relu_vjp(dy, x):
    """dx = dy above 0, else 0; at 0, where there is no derivative, 0 as in the frameworks.

    >>> import numpy as np
    >>> print(relu_vjp(np.array([1., 1, 1]), np.array([-2., 0, 3])))
    [0. 0. 1.]
    """
    return array_module(x).where(x.real <= 0, 0, dy)


def exp(x):
    """phi(x) = e^x: (..., K) to (..., K).

    >>> import numpy as np
    >>> print(exp(np.array([-np.inf, 0, np.log(2)])))
    [0. 1. 2.]
    """
    return array_module(x).exp(x)


def exp_vjp(dy, x):
    """dx = e^x dy.

    >>> import numpy as np
    >>> print(exp_vjp(np.array([3., 3]), np.array([-np.inf, np.log(2)])))
    [0. 6.]
    """
    return dy * array_module(x).exp(x)


def squared_relu(x):
    """phi(x) = max(x, 0)^2: (..., K) to (..., K).

    >>> import numpy as np
    >>> print(squared_relu(np.array([-2., 0, 3])))
    [0. 0. 9.]
    """
    y = relu(x)
    return y * y


def squared_relu_vjp(dy, x):
    """dx = 2 max(x, 0) dy.

    >>> import numpy as np
    >>> print(squared_relu_vjp(np.array([1., 1, 1]), np.array([-2., 0, 3])))
    [0. 0. 6.]
    """
    return 2 * relu(x) * dy


def softmax_pair(x):
    """phi(x) = softmax(x), softmax(-x) side by side: (..., K) to (..., 2K).

    Hedgehog without its learned map: Zhang et al., 2024, arXiv 2402.04347.  (flash-linear-attention takes one softmax over all 2K entries
    instead.)

    >>> import numpy as np
    >>> print(softmax_pair(np.log(np.array([1., 4]))))
    [0.2 0.8 0.8 0.2]
    """
    return array_module(x).concatenate([softmax(x), softmax(-x)], axis=-1)


def softmax_pair_vjp(dy, x):
    """dx = softmax_vjp of the first half at x, less that of the second half at -x.

    >>> import numpy as np
    >>> print(softmax_pair_vjp(np.array([25., 0, 0, 0]), np.log(np.array([1., 4]))))
    [ 4. -4.]
    """
    K = x.shape[-1]
    return softmax_vjp(dy[..., :K], x) - softmax_vjp(dy[..., K:], -x)


def taylor(x, factor=None):
    """phi(q) . phi(k) = 1 + s + s^2 / 2, s = q . k / sqrt(K), the beginning of e^s: (..., K) to (..., 1 + K + K (K + 3) / 2).

        phi(x) = 1,  u,  u^2 / 2,  u^2 / 2 once more,  u[i] u[j] for i < j          where u = factor x

    Based: Arora et al., 2024, arXiv 2402.18668.  There each square stands once, over sqrt(2); twice its half gives the same product, since
    1/4 + 1/4 = 1/2, and stays rational.  `factor` None is K ** -0.25 for q and for k, for fractions only if K is a fourth power;
    any two factors with the product K ** -0.5 do as well, such as 1/2 for q and 1 for k where K = 4.

    Raises ValueError for fractions if `factor` is None and no fraction.

    >>> import numpy as np
    >>> print(taylor(np.array([2., 4]), factor=1))
    [1. 2. 4. 2. 8. 2. 8. 8.]
    >>> q, k = np.array([2., 0, 0, 2]), np.array([1., 5, 5, 1])                  # s = 4 / 2
    >>> print(taylor(q, factor=.5) @ taylor(k, factor=1))
    5.0
    """
    xp, u = array_module(x), x * factor_of(factor, x)
    one, half = xp.ones(u.shape[:-1] + (1,), u.dtype), u * u / 2             # 1, K
    return xp.concatenate([one, u, half, half, *(u[..., i:i + 1] * u[..., i + 1:] for i in range(u.shape[-1]))], axis=-1)


def taylor_vjp(dy, x, factor=None):
    """dx = factor du,  du = dy of the linear part + u times the dy of the two squares + what each product u[i] u[j] sends to i and to j.

    >>> import numpy as np
    >>> print(taylor_vjp(np.array([0., 0, 0, 1, 0, 0, 0, 10]), np.array([2., 4]), factor=1))
    [42. 20.]
    """
    K, f = x.shape[-1], factor_of(factor, x)
    u, start = x * f, 1 + 3 * K
    du = dy[..., 1:1 + K] + u * (dy[..., 1 + K:1 + 2 * K] + dy[..., 1 + 2 * K:start])            # K
    for i in range(K):
        dp = dy[..., start:start + K - i - 1]                                # K - i - 1   of u[i] u[i+1:]
        du[..., i] += (dp * u[..., i + 1:]).sum(-1)
        du[..., i + 1:] += dp * u[..., i:i + 1]
        start += K - i - 1
    return du * f


def factor_of(factor, x):
    """`factor`, or K ** -0.25; for object arrays exactly or not at all."""
    K = x.shape[-1]
    if factor is not None:
        return number("factor", factor, x)
    if x.dtype != object:
        return max(K, 1) ** -0.25
    n = round(K ** 0.25)
    if n ** 4 != K or K == 0:
        raise ValueError(f"factor: K ** -0.25 is no fraction for K = {K}; pass factor, x {x.shape}")
    return Fraction(1, n)
