"""What is lost from chunk to chunk, inside a chunk, and in a last one that is short."""
import numpy as np

from ...core.blocks import blocks, cut, split
from ...core.states import leaves, rebuild
from ..case import wrong
from ..hypothesis import Hypothesis
from .gates import STEPPED, fades


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
    return in_chunks(size, lambda o, state, new, b, T: (0 * o, zeros(new) if state is None else state) if b.stop - b.start < size
                     else (o, new))


def short_forgotten(size):
    return in_chunks(size, lambda o, state, new, b, T: (o, (zeros(new) if state is None else state) if b.stop - b.start < size else new))


def short_silent(size):
    return in_chunks(size, lambda o, state, new, b, T: (0 * o if b.stop - b.start < size else o, new))


def short_faded(size):
    """The last gate acts once for every token that is missing in a short last chunk."""
    def change(case):
        axes = case.mechanism.axes["g"].split()

        def around(form):
            def faded(**x):
                o, S = form(**x)
                missing = -x["q"].shape[-2] % size
                g = x["g"][..., -1, None, None] if len(axes) == 1 else x["g"][..., -1, :, None]
                return o, np.exp(missing * g) * S if missing else S
            return faded
        return wrong(case, add_around=around)
    return change


def border_gates(size):
    """The gates of the first tokens of all chunks but the first are 0."""
    def change(case):
        axes = case.mechanism.axes["g"].split()

        def around(form):
            def without(**x):
                t = np.arange(x["q"].shape[-2])
                keep = (t % size != 0) | (t == 0)
                return form(**x | dict(g=np.where(keep if len(axes) == 1 else keep[:, None], x["g"], 0)))
            return without
        return wrong(case, add_around=around)
    return change


def formula(what):
    return lambda size: lambda case: wrong(case, chunk=(size, what))


def cumulated(size):
    """The gates of a token with those of all tokens before it in the chunk: sums of them are taken for the gates themselves."""
    def change(case):
        axis = 3 if case.arrays["g"].ndim == 4 else -1

        def around(form):
            def summed(**x):
                return form(**x | dict(g=np.concatenate([np.cumsum(x["g"].take(np.arange(b.start, b.stop), axis), axis)
                                                         for b in blocks(x["q"].shape[-2], size)], axis)))
            return summed
        return wrong(case, add_around=around)
    return change


def longest(case):
    """The length of the longest run of tokens that belong together."""
    if case.cu_seqlens is not None:
        return int(np.diff(case.cu_seqlens).max())
    return case.arrays["k"].shape[2] if case.real is None else int(case.real.sum(-1).max(initial=0))


def later(size):
    return lambda case: longest(case) > size


def short_end(size):
    return lambda case: longest(case) % size != 0


def once(size):
    """That a chunk of half the size would not do the same: it holds everything."""
    return lambda case: fades(case) and (size == 16 or longest(case) > size // 2)


RULES = "simple_gla gla gated_delta_rule kda"
FORMULA = ("O = diag(a) Q S + (Q K^T * D) U, and the next state A S + (z K)^T U, with D[i, j] the decay from j to i, a that from the first "
           "state, z that to the end.")
CHUNKS = tuple(row for size in (16, 32, 64, 128) for row in (
    Hypothesis(f"state not carried across chunks of {size}", "chunks", not_carried(size),
               f"Every chunk of {size} tokens begins with zeros.", "Hand the state on to the next chunk.",
               f"more than {2 * size} tokens", only=STEPPED, when=later(size)),
    Hypothesis(f"first gate of each chunk of {size} ignored", "chunks", border_gates(size),
               f"From one chunk of {size} tokens to the next nothing decays: the gate of a chunk's first token is left out.",
               "The first token of a chunk decays the state that comes in.", f"more than {size} tokens", "g", "recurrent",
               lambda c, size=size: fades(c) and later(size)(c)),
    Hypothesis(f"state not decayed across chunks of {size}", "chunks", formula("carry")(size),
               f"What came into a chunk of {size} tokens is handed on without the decay over the chunk.",
               f"Multiply it by the decay of all gates of the chunk. {FORMULA}",
               f"more than {size} tokens, or an initial and a final state", "g", RULES,
               lambda c, size=size: fades(c) and (longest(c) > size or any(name.startswith("state") for name in c.arrays)
                                                  and once(size)(c))),
    Hypothesis(f"writes not decayed to the end of chunks of {size}", "chunks", formula("end")(size),
               f"What is written inside a chunk of {size} tokens is handed on without decay to its end.",
               f"Multiply k by the decay from its token to the end of the chunk. {FORMULA}", f"more than {size} tokens, or a final state",
               "g", RULES, once(size)),
    Hypothesis(f"plain causal mask inside chunks of {size}", "chunks", formula("mask")(size),
               f"Inside a chunk of {size} tokens what was written is read with a mask of ones, without decay.",
               f"Use the decays from token to token as the mask. {FORMULA}", "gates other than 0", "g", RULES, once(size)),
    Hypothesis(f"chunk's first state not decayed, chunks of {size}", "chunks", formula("first")(size),
               f"The state at the beginning of a chunk of {size} tokens is read without decay.",
               f"Multiply q by the decay from the beginning of the chunk. {FORMULA}", f"more than {size} tokens, or an initial state", "g",
               RULES, once(size)),
    Hypothesis(f"prediction decayed twice, chunks of {size}", "chunks", formula("twice")(size),
               f"In chunks of {size} tokens the prediction from the first state has its decay twice.",
               "Decay either the keys or the rows of W, not both.", f"more than {size} tokens, or an initial state", "g beta",
               "gated_delta_rule kda", once(size)),
    Hypothesis(f"sign of the triangular system, chunks of {size}", "chunks", formula("sign")(size),
               f"In chunks of {size} tokens (I - L) is solved in place of (I + L).",
               "The errors solve (I + L) d = beta (v - ...).", "keys that meet again", "beta", "delta_rule gated_delta_rule kda",
               lambda c, size=size: size == 16 or longest(c) > size // 2),
    Hypothesis(f"gates cumulated twice, chunks of {size}", "gate", cumulated(size),
               f"Gates that are sums over the chunk of {size} tokens already are summed again.",
               "Pass the gate of each token, or tell the kernel that they are cumulated.", "gates other than 0", "g", "recurrent",
               once(size)),
    Hypothesis(f"no state into a short last chunk of {size}", "chunks", not_into_short(size),
               f"The last chunk, shorter than {size} tokens, begins with zeros.", "Hand the state on to it.",
               f"a T that is no multiple of {size}, and more than two chunks", only=STEPPED,
               when=lambda c, size=size: later(size)(c) and short_end(size)(c)),
    Hypothesis(f"short last chunk of {size} dropped", "chunks", short_dropped(size),
               f"Tokens behind the last whole chunk of {size} give zeros and are not written.", "Do the rest as well.",
               f"a T that is no multiple of {size}", only=STEPPED, when=lambda c, size=size: later(size)(c) and short_end(size)(c)),
    Hypothesis(f"outputs of a short last chunk of {size} missing", "chunks", short_silent(size),
               f"The outputs behind the last whole chunk of {size} tokens are zeros.", "Write them.",
               f"a T that is no multiple of {size}", only=STEPPED, when=lambda c, size=size: later(size)(c) and short_end(size)(c)),
    Hypothesis(f"short last chunk of {size} filled with its last gate", "last", short_faded(size),
               f"The last gate acts once for every token that a last chunk of {size} lacks.", "Fill up with gates of 0.",
               f"a T that is no multiple of {size}, and a final state", "g", "recurrent",
               lambda c, size=size: fades(c) and short_end(size)(c) and any(name.startswith("final_state") for name in c.got)),
    Hypothesis(f"short last chunk of {size} not in the final state", "last", short_forgotten(size),
               f"The final state is that before the last chunk, which is shorter than {size} tokens.",
               "Return the state behind it.", f"a T that is no multiple of {size}, and a final state", only=STEPPED,
               when=lambda c, size=size: later(size)(c) and short_end(size)(c) and any(name.startswith("final_state") for name in c.got)),
    Hypothesis(f"decay read beyond a short last chunk of {size}", "chunks", formula("padded")(size),
               f"The sum of gates up to the end is read behind the last token of a chunk shorter than {size}, where it is 0.",
               "Read it at the last token that there is.",
               f"a T that is no multiple of {size}, and a final state", "g", RULES,
               lambda c, size=size: fades(c) and short_end(size)(c) and any(name.startswith("final_state") for name in c.got))))
