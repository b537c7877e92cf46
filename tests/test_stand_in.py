"""An array type that refuses to mix with NumPy's, as CuPy's does, passes through every form and every gradient: no stray array on the host."""
import sys
from types import ModuleType

import numpy as np
import pytest

from npattn import softmax_attention
from npattn.catalogue import CATALOGUE
from npattn.core import packed
from npattn.core.arrays import array_module
from npattn.core.states import leaves, map_state
from npattn.proof.law import settings
from npattn.proof.material import over_scores, packed_arguments, together


def host(x):
    """What a function on the device may be given: device arrays and plain numbers, never a host array."""
    if isinstance(x, np.ndarray):
        raise TypeError("a NumPy array met a device array")
    return x.host if isinstance(x, Device) else type(x)(map(host, x)) if type(x) in (tuple, list) else x


def device(x):
    return Device(x) if isinstance(x, (np.ndarray, np.generic)) else type(x)(map(device, x)) if type(x) in (tuple, list) else x


def on_device(function):
    return lambda *args, **kwargs: device(function(*map(host, args), **{name: host(x) for name, x in kwargs.items()}))


class Device:
    """A stand-in for cupy.ndarray."""
    __module__ = "cupy"
    __array_ufunc__ = None                               # NumPy's operators leave the work to ours

    def __init__(self, x):
        self.host = np.asarray(x)

    def __getattr__(self, name):
        if name.startswith("__"):                        # such as __array_interface__, through which NumPy would look inside
            raise AttributeError(name)
        x = getattr(self.host, name)
        return on_device(x) if callable(x) else device(x) if isinstance(x, np.ndarray) else x

    def __array__(self, *args, **kwargs):
        raise TypeError("a device array does not become a NumPy array by itself")

    def __setitem__(self, index, x):
        self.host[host(index)] = host(x)

    def __bool__(self):
        return bool(self.host)


for name in "add sub mul truediv pow matmul mod floordiv and or xor".split():
    for method in f"__{name}__", f"__r{name}__":
        setattr(Device, method, lambda self, other, method=method: device(getattr(self.host, method)(host(other))))
def matmul(a, b):
    """CuPy takes no negative stride in a product that broadcasts, not even along an axis of length 1, where it means nothing."""
    if not isinstance(a, Device) or not isinstance(b, Device):
        return NotImplemented
    if a.shape[:-2] != b.shape[:-2] and any(n == 1 and stride < 0 for x in (a, b) for n, stride in zip(x.shape[:-2], x.strides)):
        raise OverflowError("a negative stride")
    return device(np.matmul(host(a), host(b)))


Device.__matmul__, Device.__rmatmul__ = matmul, lambda b, a: matmul(a, b)
for name in "add sub mul truediv".split():              # in place: views see it, as on the device
    setattr(Device, f"__i{name}__", lambda self, other, name=name: Device(getattr(self.host, f"__i{name}__")(host(other))))
for method in "__neg__ __pos__ __abs__ __invert__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __getitem__ __len__".split():
    setattr(Device, method, lambda self, *other, method=method: device(getattr(self.host, method)(*map(host, other))))


class DeviceModule(ModuleType):
    """A stand-in for the module cupy: its functions take and give device arrays; ufunc methods such as accumulate are missing."""

    def __init__(self, name, host=np):
        super().__init__(name)
        self.host = host

    def __getattr__(self, name):
        x = getattr(self.host, name)
        if isinstance(x, ModuleType):
            return DeviceModule(f"{self.__name__}.{name}", x)
        return as_strided if x is np.lib.stride_tricks.as_strided else on_device(x) if callable(x) and not isinstance(x, type) else x


def as_strided(x, shape, strides):                       # as cupy's, which knows these three alone
    return device(np.lib.stride_tricks.as_strided(host(x), shape, strides))


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", DeviceModule("cupy"))


def test_the_stand_in_is_strict():
    x = Device(np.ones(2))
    assert array_module(np.ones(2), x) is sys.modules["cupy"] and array_module(np.ones(2)) is np
    assert isinstance(x + 1, Device) and isinstance(np.float64(2) * x, Device) and isinstance(array_module(x).exp(x), Device)
    for mix in (lambda: x + np.ones(2), lambda: np.ones(2) + x, lambda: np.exp(x), lambda: np.asarray(x), lambda: x[np.array([0])],
                lambda: array_module(x).exp(np.ones(2)), lambda: array_module(x).concatenate([x, np.ones(2)]), lambda: np.where(True, x, 0)):
        with pytest.raises(TypeError):
            mix()


CASES = [pytest.param(row, options, id=f"{row.name}-{len(row.options) and options}") for row in CATALOGUE.values() for options in settings(row)]


def same(name, x, y):
    """Bit for bit by `loop`; up to rounding where blocks go side by side on a device (core.side_by_side) and inner products another way (core.arrays.dot)."""
    return np.array_equal(x, y) or name != "loop" and np.abs(x - y).max() <= 1e-12 * np.abs(y).max()


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("row, options", CASES)
def test_forms(row, options, state):
    x = row.arguments(np.random.default_rng(0), 17, lead=(2,), state=state)
    moved = {name: y if y is None else map_state(Device, y) for name, y in x.items()}
    for name, more in dict(loop={}, matrix={}, chunk=dict(chunk_size=5)).items():
        form = getattr(row.module, name)
        (o, final), (host_o, host_final) = form(**moved, **options, **more), form(**x, **options, **more)
        for got, wanted in zip((o, *leaves(final)), (host_o, *leaves(host_final)), strict=True):
            assert type(got) is Device and got.dtype == wanted.dtype and got.shape == wanted.shape
            assert same(name, got.host, wanted), name


@pytest.mark.parametrize("end", [True, False], ids=["dfinal_state", "no dfinal_state"])
@pytest.mark.parametrize("row, options", CASES)
def test_gradients(row, options, end):
    rng = np.random.default_rng(0)
    x = row.arguments(rng, 17, lead=(2,))
    do, dfinal = row.module.loop(**x, **options)         # any values of these shapes will do
    dfinal = dfinal if end else None
    moved = {name: map_state(Device, y) for name, y in x.items()}
    for name, more in dict(loop_vjp={}, matrix_vjp={}, chunk_vjp=dict(chunk_size=5)).items():
        vjp = getattr(row.module, name)
        wanted = vjp(do, **x, dfinal_state=dfinal, **options, **more)
        got = vjp(Device(do), **moved, dfinal_state=map_state(Device, dfinal) if end else None, **options, **more)
        for argument in wanted:
            for a, b in zip(leaves(got[argument]), leaves(wanted[argument]), strict=True):
                assert type(a) is Device and same(name, a.host, b), (name, argument)


@pytest.mark.parametrize("name, x", [("mask", np.ones((5, 5), bool)), ("bias", np.zeros((5, 5)))])
def test_a_mask_of_the_host(name, x):
    """Said by name, not by whichever function meets it."""
    q, v = Device(np.ones((5, 2))), Device(np.ones((5, 3)))
    for form in softmax_attention.loop, softmax_attention.matrix, softmax_attention.chunk:
        with pytest.raises(TypeError, match=f"NumPy and of CuPy cannot be mixed: {name} numpy, q cupy"):
            form(q, q, v, **{name: x})
        form(q, q, v, **{name: Device(x)})


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_packed(row):
    x, ends, states, columns = packed_arguments(row)
    rng, options = np.random.default_rng(0), dict(row.options, **dict(*over_scores(row, ends[-1], columns[-1])))
    state = together(row, states)
    moved = {name: Device(y) for name, y in x.items()} | {name: Device(y) if isinstance(y, np.ndarray) else y for name, y in options.items()}
    state_there = map_state(Device, state) if row.recurrent else [map_state(Device, S) for S in state]
    o, finals = packed.packed(row.module.chunk, **x, **options, cu_seqlens=ends, state=state)
    got, _ = packed.packed(row.module.chunk, **moved, cu_seqlens=ends, state=state_there)
    assert type(got) is Device and same("packed", got.host, o)
    do = rng.standard_normal(o.shape)
    d = packed.packed_vjp(row.module.chunk_vjp, do, **x, **options, cu_seqlens=ends, state=state)
    got = packed.packed_vjp(row.module.chunk_vjp, Device(do), **moved, cu_seqlens=ends, state=state_there)
    for name in d:
        for a, b in zip(*([y] if row.recurrent or name != "state" else y for y in (got[name], d[name])), strict=True):
            assert all(type(u) is Device and same("packed", u.host, v) for u, v in zip(leaves(a), leaves(b), strict=True)), name
