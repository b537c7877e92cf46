"""Every law of floating-point numbers, forward and backward, with the forms on a GPU: pytest tests/test_device.py --device cuda

The laws make NumPy arrays and judge NumPy arrays; between the two every form runs on CuPy's.  What is no array of numbers, such as fractions or a
tape's arrays, stays on the host, and so do laws of fractions alone.
"""
import functools

import numpy as np
import pytest
import test_stand_in as stand_in

from npattn.catalogue import CATALOGUE
from npattn.core.states import leaves, map_state
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.law import rational, settings
from npattn.proof.laws import FORWARD

FORMS = [form + vjp for form in ("loop", "matrix", "chunk") for vjp in ("", "_vjp")]


class Moved:
    """`owner`, but the forms of its module get their arrays through `there`, and what they return comes back through `back`."""

    def __init__(self, owner, there, back):
        self.owner, self.there, self.back = owner, there, back

    def __getattr__(self, name):
        x = getattr(self.owner, name)
        return Moved(x, self.there, self.back) if name == "module" else self.moved(x) if name in FORMS else x

    def moved(self, form):
        @functools.wraps(form)
        def call(*args, **kwargs):
            given = [y for x in (*args, *kwargs.values()) for y in leaves(x)]
            if any(hasattr(y, "dtype") and (type(y) is not np.ndarray or y.dtype == object) for y in given):
                return form(*args, **kwargs)
            put = lambda x: map_state(lambda y: self.there(y) if isinstance(y, np.ndarray) else y, x) if x is not None else None
            result = form(*map(put, args), **{name: put(x) for name, x in kwargs.items()})
            fetch = lambda x: map_state(self.back, x)
            return {name: fetch(x) for name, x in result.items()} if isinstance(result, dict) else tuple(map(fetch, result))

        return call


def cupy_of(config):
    """(the module cupy, "") or (None, why there is none)."""
    if config.getoption("--device", None) != "cuda":
        return None, "asks for an NVIDIA GPU and CuPy: pytest tests/test_device.py --device cuda"
    try:
        import cupy
        cupy.zeros(1) + 1
        return cupy, ""
    except Exception as error:                           # CuPy has errors of its own for a missing driver or device
        return None, f"no GPU for CuPy: {type(error).__name__}: {error}"


def pytest_generate_tests(metafunc):
    if metafunc.function is test_law:
        _, why_not = cupy_of(metafunc.config)
        cases = [pytest.param(row, law, options, id="-".join([row.name, law.name, *(f"{n}={x}" for n, x in options.items())]))
                 for row in CATALOGUE.values() for law in FORWARD + GRADIENT for options in settings(row)
                 if law.why_not is not rational and not law.why_not(row, options)]
        none = [pytest.param(None, None, None, id="no GPU", marks=pytest.mark.skip(reason=why_not))]
        metafunc.parametrize("row, law, options", none if why_not else cases)


def test_law(request, row, law, options):
    cupy, _ = cupy_of(request.config)
    found = law.worst(Moved(row, cupy.asarray, cupy.asnumpy), options)
    assert law.holds(found), f"{found}; at most {law.tolerance}"


@pytest.mark.parametrize("row, law", [pytest.param(row, law, id=f"{row.name}-{law.name}") for row in CATALOGUE.values() for law in FORWARD + GRADIENT
                                      if law.why_not is not rational and not law.why_not(row, row.options)])
def test_on_the_stand_in(monkeypatch, row, law):
    """Every law without a GPU, the forms on the stand-in for CuPy's arrays."""
    monkeypatch.setitem(stand_in.sys.modules, "cupy", stand_in.DeviceModule("cupy"))
    seen = []

    def back(x):
        assert type(x) is stand_in.Device
        seen.append(x)
        return x.host

    assert law.holds(law.worst(Moved(row, stand_in.Device, back), row.options))
    assert seen or law.name in ("tape", "exact dual", "complex step")        # which give the forms arrays of their own
