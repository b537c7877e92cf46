"""The table of hypotheses: what people who port these mechanisms get wrong, one row each.  A new one is one row in the file of its theme.

Rows are tried from top to bottom; of two that explain a dump equally well the upper one is named first.
"""
from . import attention, choice, chunks, gates, gradients, heads, layer, normaliser, order, scale, sequences

TABLE = {
    "Scale": scale.SCALE,
    "Norm of q and k": scale.NORM,
    "Which array is which": scale.ROLES,
    "Gate": gates.GATE,
    "Write strength": gates.STRENGTH,
    "Order of the steps": order.ORDER,
    "States": order.STATE,
    "Heads and axes": heads.HEADS,
    "Chunks": chunks.CHUNKS,
    "Padding and packed sequences": sequences.SEQUENCES,
    "Who sees whom": attention.MASK,
    "Weights": attention.WEIGHTS + normaliser.NORMALISER,
    "Choice of blocks": choice.BLOCKS,
    "Gradient of the gate": gradients.GATE,
    "Gradients": gradients.OTHERS + choice.LAST + gradients.FACTOR,
    "Gated DeltaNet layer": layer.LAYER,
}
HYPOTHESES = tuple(row for rows in TABLE.values() for row in rows)
