"""Scale, norms of q and k, and which array is which."""
import numpy as np

from ...core.feature_maps import elu_plus_one
from ...core.functions import l2norm
from ..case import normal, wrong
from ..hypothesis import Hypothesis


def meant(case):
    return case.options.get("scale", widths(case)[0] ** -0.5)


def widths(case):
    """K, V, and the number of heads of q; at least 1, so that each has a scale."""
    return tuple(max(n, 1) for n in (case.arrays["q"].shape[-1], case.arrays["v"].shape[-1], case.arrays["q"].shape[1]))


def scaled(by):
    return lambda case: wrong(case, options=dict(case.options, scale=by(case)))


def inverse(case):
    """1 over it; a scale of 0 has none."""
    return 1 / meant(case) if meant(case) else meant(case)


def other(by):
    """Whether that is another scale."""
    return lambda case: by(case) != meant(case)


def always(case):
    return True


def given(case):
    return "scale" in case.options


def from_values(case):
    return widths(case)[1] ** -0.5


def from_all_heads(case):
    K, _, H = widths(case)
    return (K * H) ** -0.5


SCALE = tuple(Hypothesis(name, "scale", scaled(by), says, remedy, shows, "scale", only, other(by),
                         given if name.startswith("given") else always, mixes="heads" in name) for name, by, says, remedy, shows, only in (
    ("scale missing", lambda c: 1.0, "q is not multiplied by the scale.",
     "Multiply q by the scale, K ** -0.5 unless another is given, once.", "a scale other than 1", ""),
    ("scale twice", lambda c: meant(c) ** 2, "q is multiplied by the scale twice: outside and inside the kernel.",
     "Leave the scale to one of the two.",
     "a scale other than 1", ""),
    ("scale inverted", inverse, "q is divided by the scale.", "Multiply q by K ** -0.5, do not divide by it.",
     "a scale other than 1", ""),
    ("scale from the value width", from_values, "The scale is V ** -0.5.", "Take the key width: K ** -0.5.", "K and V that differ", ""),
    ("scale from the width of all heads", from_all_heads, "The scale is (heads K) ** -0.5.", "Take the key width of one head: K ** -0.5.",
     "more than one head", ""),
    ("given scale ignored", lambda c: widths(c)[0] ** -0.5, "The scale is K ** -0.5, whatever opt.scale says.",
     "Use the scale that is given.",
     "an opt.scale other than K ** -0.5", ""),
    ("softmax in base 2", lambda c: meant(c) * np.log(2), "The weights are powers of 2 of the scores.",
     "Multiply the scores by log2(e) before exp2.", "any scores", "cached")))


def scale_on_k(case):
    return wrong(case, add_inputs=lambda x: x | dict(k=meant(case) * x["k"]))


def scale_in_numerator(case):
    return wrong(case, add_outputs=lambda y, c: y | dict(o=y["o"] * widths(c)[0] ** -0.5))


SCALE += (
    Hypothesis("scale on k as well", "scale", scale_on_k, "k is multiplied by the scale too.", "Scale q only.",
               "a scale other than 1, and a final state",
               "scale", when=lambda c: meant(c) != 1),
    Hypothesis("scale in the numerator only", "scale", scale_in_numerator, "The output is scaled by K ** -0.5, the normaliser is not.",
               "Put the scale into both, where it cancels, or into neither.", "K other than 1", only="normalized_linear_attention",
               when=lambda c: widths(c)[0] != 1))


# --- norms -------------------------------------------------------------------------------------------------------

def normed(unit, names="qk"):
    """`unit` in place of the l2 norm of the arrays named, the right norms for the others."""
    def change(case):
        rest = normal if case.l2norm else lambda x: x
        return wrong(case, l2norm=True, norm=lambda x: rest(x) | {name: unit(x[name]) for name in names})
    return change


def length(x):
    return np.sqrt((x * x).sum(-1, keepdims=True))


def before_scale(case):
    """The scale cancels, but for eps."""
    case = normed(lambda x: l2norm(x * meant(case)), "q")(case)
    return wrong(case, options=dict(case.options, scale=1.0))


def is_normed(case):
    return case.l2norm


def is_plain(case):
    return not case.l2norm


NORM = tuple(Hypothesis(name, "norm", normed(unit, names), says, remedy, shows, meant=is_normed) for name, unit, names, says, remedy,
             shows in (
    ("l2 norm missing", lambda x: x, "qk", "q and k are used as they are.", "Divide q and k by sqrt(sum x^2 + 1e-6) first.",
     "q and k of lengths other than 1"),
    ("l2 norm on q only", lambda x: x, "k", "k is used as it is.", "Normalise k as well.", "k of lengths other than 1"),
    ("l2 norm on k only", lambda x: x, "q", "q is used as it is.", "Normalise q as well.", "q of lengths other than 1"),
    ("eps outside the root", lambda x: x / (length(x) + 1e-6), "qk", "The norm is |x| + 1e-6.", "Take sqrt(sum x^2 + 1e-6).",
     "q or k shorter than 0.1, in more than float16"),
    ("eps on the mean", lambda x: l2norm(x, eps=1e-6 * x.shape[-1]), "qk",
     "The eps is added to the mean of squares (an RMS norm, rescaled), so K times too large.",
     "Add 1e-6 to the sum of squares.", "q or k shorter than 0.1, in more than float16"),
    ("eps as a maximum", lambda x: x / np.maximum(length(x), 1e-6), "qk", "The norm is max(|x|, 1e-6).", "Take sqrt(sum x^2 + 1e-6).",
     "q or k shorter than 0.1, in more than float16"),
    ("eps 1e-12", lambda x: l2norm(x, eps=1e-12), "qk", "The eps is 1e-12 or none.", "Take sqrt(sum x^2 + 1e-6).",
     "q or k shorter than 0.1, in more than float16"),
    ("RMS norm in place of the l2 norm", lambda x: x.shape[-1] ** 0.5 * l2norm(x, eps=1e-6 * x.shape[-1]), "qk",
     "q and k are divided by the root of the mean of squares.",
     "Divide by the root of the sum of squares.", "K other than 1"))) + (
    Hypothesis("scale before the norm", "norm scale", before_scale, "q is scaled and then normalised, so that the scale cancels.",
               "Normalise first, then scale.",
               "a scale other than 1, and q shorter than 0.1", "scale", when=lambda c: meant(c) != 1, meant=is_normed),
    *(Hypothesis(name, "norm", normed(l2norm, names), f"{what} normalised, which was not meant.",
                 "Leave out the norm, or give opt.use_qk_l2norm.",
                 "q and k of lengths other than 1", meant=is_plain) for name, names, what in (
        ("l2 norm superfluous", "qk", "q and k are"), ("l2 norm of q superfluous", "q", "q is"),
        ("l2 norm of k superfluous", "k", "k is"))))


# --- which is which ----------------------------------------------------------------------------------------------

def alike(*names):
    return lambda case: len({case.arrays[name].shape for name in names}) == 1


def renamed(**names):
    return lambda case: wrong(case, add_inputs=lambda x: x | {new: x[old] for new, old in names.items()})


def mapped(case):
    return wrong(case, add_inputs=lambda x: x | {name: elu_plus_one(x[name]) for name in "qk"})


ROLES = (
    Hypothesis("q and k swapped", "roles", renamed(q="k", k="q"), "q is used as k, and k as q.", "Swap the two arguments.",
               "q and k that differ", meant=alike("q", "k")),
    Hypothesis("k and v swapped", "roles", renamed(k="v", v="k"), "k is used as v, and v as k.", "Swap the two arguments.",
               "K and V that differ", meant=alike("k", "v")),
    Hypothesis("q and v swapped", "roles", renamed(q="v", v="q"), "q is used as v, and v as q.", "Swap the two arguments.",
               "K and V that differ", meant=alike("q", "v")),
    Hypothesis("read with k", "roles", renamed(q="k"), "The state is read with k in place of q.", "Read with q.", "q and k that differ",
               meant=alike("q", "k")),
    Hypothesis("feature map elu + 1 applied", "feature", mapped, "elu(x) + 1 is applied to q and k inside.",
               "Apply feature maps on one side of the call only.",
               "negative q or k", only="linear_attention normalized_linear_attention"))
