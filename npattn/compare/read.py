"""Reading a dump: a file or a mapping in, a Problem and what the implementation returned out, all in float64.

The format is in derivations/dump_format.md.  Whatever makes a dump unusable raises DumpError, a ValueError whose message is one line.
"""
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from ..catalogue import CATALOGUE
from ..core.arguments import leaf_names
from .files import load
from .layout import LAYOUTS, DumpError, check_type, check_values, heads, is_output, key_axes, ours, read_tokens, sizes_of
from .problem import Problem, takes

ALIASES = {"sliding_window_attention": "softmax_attention"}                  # the name says that opt.window is meant


class Dump(NamedTuple):
    problem: Problem
    outputs: dict[str, Any]                              # what the implementation returned: (B, heads, …) in float64
    types: dict[str, np.dtype]                           # in which types it is stored
    layout: str
    sizes: dict[str, int]                                # of B, T, K, V, …
    axes: dict[str, list[str]]                           # of every output: its axes, heads before tokens


def read(source, mechanism=None, layout=None):
    """The Dump in a file, a folder or a mapping (see files.py).  `mechanism` and `layout` go before what is stored."""
    arrays = load(source)
    stored = {key: text(key, arrays.pop(key)) for key in ("mechanism", "layout") if key in arrays}
    layout, mechanism = layout or stored.get("layout", "bthd"), mechanism or stored.get("mechanism")
    if layout not in LAYOUTS:
        raise DumpError(f"unknown layout {layout!r}: {' or '.join(LAYOUTS)}")
    row = row_of(mechanism, arrays)
    table = key_axes(row, packed="cu_seqlens" in arrays)
    check_keys(row, arrays, table)
    options = read_options(row, mechanism, arrays)
    main = {key: x for key, x in arrays.items() if key in table}
    for key, x in main.items():
        check_type(key, x)
    try:
        sizes = sizes_of(main, table, layout)
    except DumpError as error:
        raise DumpError(f"{error}{otherwise(row, main, table, layout)}") from None
    few, many = heads(row)
    if not sizes[few] or sizes[many] % sizes[few]:
        raise DumpError(f"{many} = {sizes[many]} is no multiple of {few} = {sizes[few]} heads")
    real, cu = read_tokens(arrays, sizes)
    whole = {key: ours(key, x, table[key], layout) for key, x in main.items()}
    for key, x in whole.items():
        check_values(key, x, table[key], real)
    outputs = {key: x for key, x in whole.items() if is_output(key)}
    inputs = {key.removeprefix("opt."): x for key, x in whole.items() if key not in outputs}
    check_outputs(outputs, inputs, row, real is not None or cu is not None)
    l2norm = options.pop("use_qk_l2norm", False)
    return Dump(Problem(row, inputs, options, l2norm, real, cu), outputs, {key: main[key].dtype for key in outputs}, layout, sizes,
                {key: table[key] for key in outputs})


# --- names and options -------------------------------------------------------------------------------------------

def text(key, x):
    if x.size != 1 or x.dtype.kind not in "US":
        raise DumpError(f"{key} must be one string, not {x.dtype} {x.shape}")
    x = x.item()
    return x.decode(errors="replace") if isinstance(x, bytes) else x


def name_in(arrays):
    """The mechanism that is stored, or None."""
    return text("mechanism", arrays["mechanism"]) if "mechanism" in arrays else None


def row_of(mechanism, arrays):
    """The row of the catalogue."""
    names = [*CATALOGUE, *ALIASES]
    if mechanism is None:
        fit = fitting(arrays)
        raise DumpError("the dump does not say its mechanism; "
                        + (f"its arrays fit {', '.join(fit)}" if fit else f"one of {', '.join(names)} must be given"))
    if not isinstance(mechanism, str):
        raise DumpError(f"mechanism must be a string, not {mechanism!r}")
    if mechanism not in names:
        close = get_close_matches(mechanism, names, 1)
        raise DumpError(f"unknown mechanism {mechanism!r}" + (f"; did you mean {close[0]}?" if close else f": one of {', '.join(names)}"))
    return CATALOGUE[ALIASES.get(mechanism, mechanism)]


def fitting(arrays):
    """The mechanisms that have a use for every array, and have all that they need."""
    def fits(row):
        needed, _, options, _ = takes(row)
        known = {*key_axes(row), "mask", "cu_seqlens", "opt.use_qk_l2norm", *("opt." + name for name in options)}
        return set(needed) <= arrays.keys() <= known and all(arrays[key].ndim == len(letters) for key, letters in key_axes(row).items()
                                                             if key in arrays and not key.startswith("opt."))
    return [row.name for row in CATALOGUE.values() if fits(row)]


def otherwise(row, arrays, table, layout):
    """What the shapes would fit, to be added to an error."""
    other = next(x for x in LAYOUTS if x != layout)
    try:
        sizes_of(arrays, table, other)
        return f"; all arrays fit layout {other}"
    except DumpError:
        fit = [name for name in fitting(arrays) if name != row.name]
        return f"; these arrays fit {', '.join(fit)}" if fit and row.name not in fitting(arrays) else ""


OTHER_NAMES = dict(                                      # what libraries call it
    state="initial_state init_state h0 s0 past_state prev_state",
    final_state="ht last_state last_recurrent_state recurrent_state new_state",
    dstate="dinitial_state dh0 grad_initial_state", dfinal_state="dht grad_final_state",
    g="gk g_k gate gates decay log_decay log_alpha alpha w a", beta="b betas", q="query queries", k="key keys", v="value values",
    o="out output outputs y attn_output", do="dout grad_output dy", mask="attention_mask padding_mask",
    cu_seqlens="cu_seq_lens cu_seqlens_q cu_seqlens_k offsets") | {
    "state.k": "k_cache cache_k past_k past_key", "state.v": "v_cache cache_v past_v past_value",
    "opt.mask": "attn_mask", "opt.bias": "attn_bias",
    "opt.scale": "scale softmax_scale sm_scale scaling", "opt.causal": "causal is_causal",
    "opt.window": "window window_size sliding_window",
    "opt.use_qk_l2norm": "use_qk_l2norm use_qk_l2norm_in_kernel qk_l2norm", "opt.topk": "topk top_k", "opt.block_size": "block_size",
    "opt.eps": "eps epsilon"}


def meant(key, names):
    """The one of `names` that an unknown key may stand for, or None.

    >>> meant("initial_state", ["k", "state", "final_state"]), meant("gk", ["k", "g"]), meant("betta", ["b", "beta"]), meant("vv", ["v"])
    ('state', 'g', 'beta', None)
    """
    own = key.removeprefix("opt.").lower()
    wanted = [name for name, others in OTHER_NAMES.items() if own in others.split() or key.lower() == name]
    parts = [name for name in names for other in wanted if name == other or name.startswith(other + ".")]
    longer = [name for name in names if len(name) > 1]   # a letter is like too much
    return parts[0] if parts else next(iter(get_close_matches(key, longer, 1)), None)


def check_keys(row, arrays, table):
    """DumpError for a key that means nothing to the mechanism, and for what is missing."""
    needed, _, options, choices = takes(row)
    options = ["opt.use_qk_l2norm", *("opt." + name for name in options)]
    known = [*table, "mask", "cu_seqlens", *options]
    for key in arrays:
        if key not in known:
            close, fit = meant(key, known), fitting(arrays)
            inputs = [key for key in table if not is_output(key)]
            raise DumpError(f"unknown key {key!r}: {row.name} knows {', '.join([*inputs, 'mask', 'cu_seqlens', *options])}" +
                            (f"; did you mean {close}?" if close else "") + (f"; these arrays fit {', '.join(fit)}" if fit else ""))
    missing = [name for name in needed if name not in arrays] + [f"opt.{name}" for name in choices if f"opt.{name}" not in arrays]
    if missing:
        raise DumpError(f"{' and '.join(missing)} missing: {row.name} needs {', '.join(needed)}; the dump has {', '.join(arrays) or 'no arrays'}")
    for prefix in ("state", "dfinal_state"):
        names = leaf_names(prefix, row.axes["state"])
        if 0 < sum(name in arrays for name in names) < len(names):
            raise DumpError(f"{prefix} has the parts {' and '.join(names)}: give all or none")


def read_options(row, mechanism, arrays):
    """Keywords for the mechanism as plain numbers, and use_qk_l2norm."""
    options = {}
    for key, x in arrays.items():
        if not key.startswith("opt.") or key in ("opt.mask", "opt.bias"):
            continue
        if key in ("opt.use_qk_l2norm", "opt.causal") and x.size == 1 and x.dtype.kind in "USO":
            raise DumpError(f"{key} must be true or false, not {x.item()!r}")
        if x.size != 1 or x.dtype.kind not in "fiub" or not np.isfinite(x).all():
            raise DumpError(f"{key} must be one finite number, not {x.dtype} {x.shape if x.size != 1 else x.item()}")
        x = x.item()
        if key in ("opt.use_qk_l2norm", "opt.causal"):
            if x not in (0, 1):
                raise DumpError(f"{key} must be true or false, not {x}")
            x = bool(x)
        options[key[4:]] = x
    if mechanism in ALIASES and "window" not in options:
        raise DumpError(f"{mechanism} needs opt.window")
    return options


def check_outputs(outputs, inputs, row, in_parts):
    """DumpError where there is nothing to compare, or not what it takes to do so."""
    gradients = [key for key in outputs if key.startswith("d")]
    if not outputs:
        raise DumpError("there is nothing to compare: no o, no final_state and no gradient (dq, dk, …)")
    if not inputs["q"].shape[0]:
        raise DumpError("there is nothing to compare: no batch row")
    if gradients and not any(key == "do" or key.startswith("dfinal_state") for key in inputs):
        raise DumpError(f"{', '.join(gradients)} cannot be checked without do or dfinal_state, the gradients that came in")
    if "dbias" in outputs and ("bias" not in inputs or outputs["dbias"].shape != inputs["bias"].shape):
        raise DumpError("dbias must have the shape of opt.bias")
    cached = [key for key, x in outputs.items() if key.startswith("dstate") and x.shape[2]]
    if cached and not row.recurrent and "state.k" not in inputs:
        raise DumpError(f"{', '.join(cached)}: the gradient of a cache, but there is no state.k and state.v that the call started from")
    if in_parts and not row.recurrent and any("final_state" in key for key in (*outputs, *inputs)):
        raise DumpError("final_state: the caches of padded or packed sequences have different lengths; leave it out")
