"""The catalogue × the laws of gradients: the hand-derived ones agree with each other and with three proofs that share no code with them."""
import pytest

from npattn.catalogue import CATALOGUE
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.law import settings


def cases():
    for row in CATALOGUE.values():
        for law in GRADIENT:
            for options in settings(row):
                if not law.why_not(row, options):
                    yield pytest.param(row, law, options, id="-".join([row.name, law.name, *(f"{n}={v}" for n, v in options.items())]))


@pytest.mark.parametrize("row, law, options", list(cases()))
def test_law(row, law, options):
    found = law.worst(row, options)
    assert law.holds(found), f"{found}; at most {law.tolerance}"
    assert found.what != "nothing to compare"


@pytest.mark.parametrize("row", list(CATALOGUE.values()), ids=lambda row: row.name)
def test_every_gradient_has_a_sharp_proof(row):
    """The tape always; beside it dual numbers, the complex step, or at the least differences."""
    proofs = {law.name for law in GRADIENT for options in settings(row) if not law.why_not(row, options)}
    assert "tape" in proofs and ("complex step" in proofs) != ("central differences" in proofs) and ("exact dual" in proofs) == row.exact
