"""The normaliser of normalised linear attention; linear attention without its causal mask."""
import numpy as np

from ...core.states import Normalized
from ..case import wrong
from ..hypothesis import Hypothesis
from ..recurrence import by_steps
from .attention import options


def linear(divide):
    """o = divide(S^T q, z . q) of the normalised form's states."""
    def change(case):
        sums = by_steps("write read", normalized=True)

        def form(q, k, v, *, eps=0, state=None):
            o, last = sums(q, k, v, state=state, eps=eps)
            z = state.z[..., None, :] if state is not None else 0
            n = (q * (np.cumsum(k, -2) + z)).sum(-1)[..., None]              # T 1
            return divide(o * (n + eps), n + eps), last
        return wrong(case, form=form)
    return change


def without_z(case):
    return wrong(case, add_inputs=lambda x: x | {"state.z": 0 * x["state.z"]})


def all_tokens(case):
    """Every query reads the final state."""
    def around(form):
        def whole(**x):
            _, last = form(**x)
            S, z = (last.S, last.z) if isinstance(last, Normalized) else (last, None)
            if z is None:
                return x["q"] @ S * x.get("scale", max(x["q"].shape[-1], 1) ** -0.5), last
            return x["q"] @ S / (x["q"] @ z[..., None] + x.get("eps", 0)), last
        return whole
    return wrong(case, add_around=around)


NORMALISED = "normalized_linear_attention"
NORMALISER = tuple(Hypothesis(name, "weights", change, says, remedy, shows, only=NORMALISED, when=when) for name, change, says, remedy,
                   shows, when in (
    ("normaliser missing", linear(lambda x, n: x), "The sum of the weights is not divided by.", "Divide by q . z, z the sum of the keys.",
     "any inputs", lambda c: True),
    ("normaliser at least 1", linear(lambda x, n: x / np.maximum(abs(n), 1)), "The output is divided by max(|q . z|, 1).",
     "Divide by q . z itself.", "sums of weights below 1", lambda c: True),
    ("eps 1e-6 in the normaliser", options(eps=1e-6), "1e-6 is added to the sum of the weights.", "Add opt.eps, 0 unless given.",
     "small sums of weights", lambda c: c.options.get("eps", 0) != 1e-6),
    ("initial sum of keys ignored", without_z, "state.z is not used.", "Begin the sum of the keys with it.", "an initial state",
     lambda c: "state.z" in c.arrays)))
NORMALISER += (
    Hypothesis("causal mask missing in linear attention", "order", all_tokens, "Every token reads what all tokens wrote.",
               "Token t reads the sum up to t.", "more than one token", only=f"linear_attention {NORMALISED}", whole=True),)
