"""What a block does to a first state that nobody knows yet.

Every line of a matrix form is affine in its first state S, so it can be worked out before S is known.  With UNKNOWN for a state `matrix` gives
o and the last state as

    x(S) = r m S + A S + c        m (..., T, K), c (..., T, V); r (..., T, 1), a factor for each row of m, not multiplied in yet: the next
                                  product takes it into its left factor, which has no more numbers than m;
                                  A (..., 1, 1) or (..., K, 1), how a last state fades, 1 if it does not

None stands for a part that is not there.
"""
from .arrays import array_module


class Affine:
    """r m S + A S + c, and what matrix forms do with it: a factor for each row, a matrix on the left, sums and differences."""
    __slots__ = ("r", "m", "A", "c")
    __array_ufunc__ = None                                                   # arrays leave their operators to those below

    def __init__(self, r=1, m=None, A=None, c=None):
        self.r, self.m, self.A, self.c = r, m, A, c

    @property
    def read(self):
        """r m."""
        return self.m if self.m is None or is_one(self.r) else self.r * self.m

    def __rmatmul__(self, x):
        if self is UNKNOWN:
            return Affine(m=x)
        if self.A is not None:
            raise TypeError("a matrix form multiplies by its first state, not by what becomes of it")
        x = x if type(x).__module__ == "numpy" else array_module(x).ascontiguousarray(x)     # once: CuPy would copy it for each product
        return Affine(m=None if self.m is None else (x if is_one(self.r) else x * self.r.mT) @ self.m, c=None if self.c is None else x @ self.c)

    def __mul__(self, x):
        return Affine(x * self.r, self.m, *(None if part is None else x * part for part in (self.A, self.c)))

    def __add__(self, x):
        x = x if isinstance(x, Affine) else Affine(c=x)
        return Affine(m=plus(self.read, x.read), A=plus(self.A, x.A), c=plus(self.c, x.c))

    def __sub__(self, x):
        return self + -1 * x

    def __rsub__(self, x):
        return -1 * self + x

    __rmul__, __radd__ = __mul__, __add__


def is_one(r):
    return isinstance(r, int) and r == 1


def plus(x, y):
    return y if x is None else x if y is None else x + y


UNKNOWN = Affine(A=1)
