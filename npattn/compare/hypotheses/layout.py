"""Heads, axes, chunks, padding and packed sequences: which numbers meet."""
import numpy as np

from ...core.blocks import blocks, cut, split
from ...core.states import leaves, map_state, rebuild
from ..case import wrong
from ..hypothesis import Hypothesis
from .gates import STEPPED


# --- heads and axes ----------------------------------------------------------------------------------------------

def heads(case):
    """(key heads, heads of the output)."""
    return case.arrays["k"].shape[1], case.arrays["v" if case.mechanism.recurrent else "q"].shape[1]


def is_grouped(case):
    few, many = heads(case)
    return 1 < few < many


def tiled(case):
    """The heads of the output in the order 0, few, 2 few, …, 1, few + 1, …: then those of one key head stand together, as the forms want it."""
    few, many = heads(case)
    order = np.arange(many).reshape(many // few, few).T.ravel()
    fixed = "q k" if case.mechanism.recurrent else "k v state.k state.v"
    put = lambda names, order: lambda x, *_: {name: y[:, order] if names(name) and y.shape[1] == many else y for name, y in x.items()}
    back = lambda name: name == "o" or (case.mechanism.recurrent and name.startswith("final_state"))
    ends = lambda name: name != "do" and not name.startswith("dfinal_state")
    return wrong(case, add_inputs=put(lambda name: name not in fixed.split() and ends(name), order), add_outputs=put(back, np.argsort(order)))


def first_head(case):
    names = "q k" if case.mechanism.recurrent else "k v"
    return wrong(case, add_inputs=lambda x: x | {name: x[name][:, [0] * x[name].shape[1]] for name in names.split()})


def read_as(there, back):
    """Every array with tokens goes in through `there`, the output comes back through `back`: what comes out if heads are taken for tokens."""
    def change(case):
        ends = lambda name: name != "do" and "state" not in name
        one, two = (there, back) if case.layout == "bthd" else (back, there)
        return wrong(case, add_inputs=lambda x: {name: one(y) if ends(name) else y for name, y in x.items()}, add_outputs=lambda y, case: y | dict(o=two(y["o"])))
    return change


def swapped(x):
    return x.swapaxes(1, 2)


def viewed(x):
    """(B, H, T, …), stored as [B, T, H, …], read as if it were stored as [B, H, T, …]."""
    return x.swapaxes(1, 2).reshape(x.shape)


def viewed_back(x):
    """The reverse: the numbers of (B, H, T, …) in their order, as [B, T, H, …]."""
    return x.reshape(x.shape[:1] + (x.shape[2], x.shape[1]) + x.shape[3:]).swapaxes(1, 2)


def plain_sizes(case):
    """No padding, no packing, all heads alike where asked: the swapped axes fit."""
    return case.real is None and case.cu_seqlens is None and not {"mask", "bias"} & case.arrays.keys()


def can_swap(case):
    q, k, v = (case.arrays[name] for name in "qkv")
    states = [x.shape[1] for name, x in case.arrays.items() if name.startswith("state")]
    return plain_sizes(case) and q.shape[1] == k.shape[1] == v.shape[1] and k.shape[2] == q.shape[2] and all(n == q.shape[2] for n in states)


HEADS = (
    Hypothesis("key heads tiled", "heads", tiled, "Output head h uses key head h mod H: the key heads are tiled, 0, 1, 0, 1.",
               "Repeat each key head G times in a row: 0, 0, 1, 1; head h uses key head h // G.", "more than one key head, and several output heads for each", when=is_grouped, mixes=True),
    Hypothesis("first key head for all", "heads", first_head, "All heads use the first key head.", "Head h uses key head h // G.", "more than one key head",
               when=lambda c: c.arrays["k"].shape[1] > 1, mixes=True),
    Hypothesis("head and time axes swapped", "axes", read_as(swapped, swapped), "Heads are taken for tokens and tokens for heads.", "Give the arrays in the layout that the kernel expects.",
               "T that differs from the number of heads makes it an error of shape, if shapes are checked", meant=can_swap, whole=True, mixes=True),
    Hypothesis("head and time axes viewed, not swapped", "axes", read_as(viewed, viewed_back), "The arrays are reshaped from one layout to the other, without moving their entries.",
               "Transpose, do not reshape.", "more than one head", meant=lambda c: plain_sizes(c) and not any(name.startswith("state") for name in c.arrays), whole=True, mixes=True))


# --- chunks ------------------------------------------------------------------------------------------------------

def in_chunks(size, carry):
    """The form on chunks of `size` tokens; carry(state, new, begin, T) goes on to the next, and what would is returned."""
    def change(case):
        axes = case.mechanism.axes

        def around(form):
            def chunked(q, k, v, *, state=None, **others):
                tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
                T, outputs = q.shape[-2], []
                for b in blocks(T, size):
                    o, new = form(**cut(tokens, axes, b), **options, state=state)
                    o, state = carry(o, state, new, b, T)
                    outputs.append(o)
                return np.concatenate(outputs, axis=-2), state
            return chunked
        return wrong(case, add_around=around)
    return change


def zeros(state):
    return rebuild(state, [0 * y for y in leaves(state)])


def not_carried(size):
    return in_chunks(size, lambda o, state, new, b, T: (o, new if b.stop == T else zeros(new)))


def not_into_short(size):
    return in_chunks(size, lambda o, state, new, b, T: (o, zeros(new) if b.stop < T < b.stop + size else new))


def short_dropped(size):
    return in_chunks(size, lambda o, state, new, b, T: (0 * o, zeros(new) if state is None else state) if b.stop - b.start < size else (o, new))


def short_forgotten(size):
    return in_chunks(size, lambda o, state, new, b, T: (o, (zeros(new) if state is None else state) if b.stop - b.start < size else new))


def formula(what):
    return lambda size: lambda case: wrong(case, chunk=(size, what))


def cumulated(size):
    """The gates of a token with those of all tokens before it in the chunk: sums of them are taken for the gates themselves."""
    def change(case):
        axis = 3 if case.arrays["g"].ndim == 4 else -1

        def around(form):
            def summed(**x):
                return form(**x | dict(g=np.concatenate([np.cumsum(x["g"].take(np.arange(b.start, b.stop), axis), axis) for b in blocks(x["q"].shape[-2], size)], axis)))
            return summed
        return wrong(case, add_around=around)
    return change


def longest(case):
    """The length of the longest run of tokens that belong together."""
    if case.cu_seqlens is not None:
        return int(np.diff(case.cu_seqlens).max())
    return case.arrays["k"].shape[2] if case.real is None else int(case.real.sum(-1).max(initial=0))


def fades(case):
    return "g" in case.arrays and bool((case.arrays["g"] < 0).any())


def later(size):
    return lambda case: longest(case) > size


def short_end(size):
    return lambda case: longest(case) % size != 0


def once(size):
    """That a chunk of half the size would not do the same: it holds everything."""
    return lambda case: fades(case) and (size == 16 or longest(case) > size // 2)


RULES = "simple_gla gla gated_delta_rule kda"
FORMULA = "O = diag(a) Q S + (Q K^T * D) U, and the next state A S + (z K)^T U, with D[i, j] the decay from j to i, a that from the first state, z that to the end."
CHUNKS = tuple(row for size in (16, 32, 64, 128) for row in (
    Hypothesis(f"state not carried across chunks of {size}", "chunks", not_carried(size), f"Every chunk of {size} tokens begins with zeros.", "Hand the state on to the next chunk.",
               f"more than {size} tokens", only=STEPPED, when=later(size)),
    Hypothesis(f"state not decayed across chunks of {size}", "chunks", formula("carry")(size), f"What came into a chunk of {size} tokens is handed on without the decay over the chunk.",
               f"Multiply it by the decay of all gates of the chunk. {FORMULA}", f"more than {size} tokens, or an initial and a final state", "g", RULES,
               lambda c, size=size: fades(c) and (longest(c) > size or any(name.startswith("state") for name in c.arrays) and once(size)(c))),
    Hypothesis(f"writes not decayed to the end of chunks of {size}", "chunks", formula("end")(size), f"What is written inside a chunk of {size} tokens is handed on without decay to its end.",
               f"Multiply k by the decay from its token to the end of the chunk. {FORMULA}", f"more than {size} tokens, or a final state", "g", RULES, once(size)),
    Hypothesis(f"plain causal mask inside chunks of {size}", "chunks", formula("mask")(size), f"Inside a chunk of {size} tokens what was written is read with a mask of ones, without decay.",
               f"Use the decays from token to token as the mask. {FORMULA}", "gates other than 0", "g", RULES, once(size)),
    Hypothesis(f"chunk's first state not decayed, chunks of {size}", "chunks", formula("first")(size), f"The state at the beginning of a chunk of {size} tokens is read without decay.",
               f"Multiply q by the decay from the beginning of the chunk. {FORMULA}", f"more than {size} tokens, or an initial state", "g", RULES, once(size)),
    Hypothesis(f"prediction decayed twice, chunks of {size}", "chunks", formula("twice")(size), f"In chunks of {size} tokens the prediction from the first state has its decay twice.",
               "Decay either the keys or the rows of W, not both.", f"more than {size} tokens, or an initial state", "g beta", "gated_delta_rule kda", once(size)),
    Hypothesis(f"sign of the triangular system, chunks of {size}", "chunks", formula("sign")(size), f"In chunks of {size} tokens (I - L) is solved in place of (I + L).",
               "The errors solve (I + L) d = beta (v - ...).", "keys that meet again", "beta", "delta_rule gated_delta_rule kda",
               lambda c, size=size: size == 16 or longest(c) > size // 2),
    Hypothesis(f"gates cumulated twice, chunks of {size}", "gate", cumulated(size), f"Gates that are sums over the chunk of {size} tokens already are summed again.",
               "Pass the gate of each token, or tell the kernel that they are cumulated.", "gates other than 0", "g", "recurrent", once(size)),
    Hypothesis(f"no state into a short last chunk of {size}", "chunks", not_into_short(size), f"The last chunk, shorter than {size} tokens, begins with zeros.", "Hand the state on to it.",
               f"a T that is no multiple of {size}, and more than two chunks", only=STEPPED, when=lambda c, size=size: later(size)(c) and short_end(size)(c)),
    Hypothesis(f"short last chunk of {size} dropped", "chunks", short_dropped(size), f"Tokens behind the last whole chunk of {size} give zeros and are not written.", "Do the rest as well.",
               f"a T that is no multiple of {size}", only=STEPPED, when=lambda c, size=size: later(size)(c) and short_end(size)(c)),
    Hypothesis(f"short last chunk of {size} not in the final state", "last", short_forgotten(size), f"The final state is that before the last chunk, which is shorter than {size} tokens.",
               "Return the state behind it.", f"a T that is no multiple of {size}, and a final state", only=STEPPED,
               when=lambda c, size=size: later(size)(c) and short_end(size)(c) and any(name.startswith("final_state") for name in c.got)),
    Hypothesis(f"decay read beyond a short last chunk of {size}", "chunks", formula("padded")(size),
               f"The sum of gates up to the end is read behind the last token of a chunk shorter than {size}, where it is 0.", "Read it at the last token that there is.",
               f"a T that is no multiple of {size}, and a final state", "g", RULES,
               lambda c, size=size: fades(c) and short_end(size)(c) and any(name.startswith("final_state") for name in c.got))))


# --- padding and packing -----------------------------------------------------------------------------------------

def leaking(case):
    return wrong(case, real=None)


def hidden(*names):
    """Padding comes in, with these arrays set to zero there (others as they are)."""
    def change(case):
        def hide(x):
            keep = {name: case.real[:, None, :, *[None] * (x[name].ndim - 3)] for name in names if name in x}
            return x | {name: np.where(keep[name], x[name], 0) for name in keep}
        return wrong(case, real=None, add_inputs=hide)
    return change


def padded(case):
    return case.real is not None


def pads(case):
    return padded(case) and not case.real.all()


def run_on(case):
    """The packed sequences as one, its state noted at every boundary."""
    axes, lengths = case.mechanism.axes, [slice(a, b) for a, b in zip(case.cu_seqlens[:-1], case.cu_seqlens[1:])]

    def around(form):
        def joined(q, k, v, *, state=None, **others):
            tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
            outputs, states = [], []
            for b in lengths:
                o, state = form(**cut(tokens, axes, b), **options, state=state)
                outputs.append(o)
                states.append(state)
            return np.concatenate(outputs, axis=-2), map_state(lambda *parts: np.concatenate(parts), *states)
        return joined
    first = lambda x: {name: y[:1] if name.startswith("state") else y for name, y in x.items()}
    return wrong(case, cu_seqlens=None, add_inputs=first, add_around=around if case.mechanism.recurrent else lambda form: form)


def lost(of):
    """`of`(states, numbers of the empty sequences) in place of the final states of empty sequences."""
    def change(case):
        empty = np.flatnonzero(np.diff(case.cu_seqlens) == 0)

        def put(y, case):
            return {name: np.stack([of(x, n) if n in empty else x[n] for n in range(len(x))]) if name.startswith("final_state") else x for name, x in y.items()}
        return wrong(case, add_outputs=put)
    return change


def packed(case):
    return case.cu_seqlens is not None


def has_empty(case):
    return bool((np.diff(case.cu_seqlens) == 0).any()) and any(name.startswith("final_state") for name in case.got)


SEQUENCES = (
    Hypothesis("padding leaks", "padding", leaking, "Padded tokens are processed like real ones.", "Let them change nothing: k, v, beta and g of 0 (after any activation), or skip them.",
               "a mask with padding before real tokens, or a final state", when=pads, meant=padded),
    Hypothesis("padding decays", "padding", hidden("k", "v", "beta"), "Padded tokens write nothing, but their gates decay the state.", "Set g to 0 there, after its activation.",
               "padding with gates other than 0 before real tokens, or a final state", "g", "recurrent", pads, padded),
    Hypothesis("padding writes", "padding", hidden("g"), "Padded tokens do not decay the state, but write to it.", "Set k, v and beta to 0 there.",
               "padding that holds something, before real tokens, or a final state", "g", "recurrent", pads, padded),
    Hypothesis("packed sequences leak", "packing", run_on, "The state runs on from one packed sequence into the next.", "Begin every sequence with its own state: cu_seqlens.",
               "more than one sequence that is not empty", when=lambda c: c.real is None and len(c.cu_seqlens) > 2, meant=packed),
    Hypothesis("empty sequence's state zero", "packing", lost(lambda x, n: 0 * x[n]), "The final state of an empty sequence is zeros.", "It is its initial state.",
               "an empty sequence with an initial state", only="recurrent", when=has_empty, meant=packed),
    Hypothesis("empty sequence's state from its neighbour", "packing", lost(lambda x, n: x[n - 1]), "The final state of an empty sequence is that of the sequence before.",
               "It is its initial state.", "an empty sequence", only="recurrent", when=has_empty, meant=packed))
