"""npattn: linear and sparse attention from scratch in NumPy, exact and explained."""
from .delta import delta_rule, gated_delta_rule, gated_delta_rule_predict_first, kda
from .linear import gla, linear_attention, normalized_linear_attention, simple_gla
from .softmax import softmax_attention
from .sparse import block_topk_attention


def __getattr__(name):
    if name == "__version__":                            # looked up when it is asked for: that reads a file
        from .version import version
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
