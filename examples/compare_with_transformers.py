"""Is the gated delta rule of Transformers (Qwen3-Next, Qwen3.5) right?  Its saved outputs, and fresh ones where torch and transformers are installed.

    python examples/compare_with_transformers.py
"""
import inspect

import numpy as np

from npattn import data
from npattn.compare import check_dump

# Saved: outputs and gradients of Transformers, one key head for two value heads, q and k normalised inside.
name = "transformers_gated_delta_rule_T012_l2_gqa"
dump = data.dump(name)
print(data.provenance()[name]["framework"], "as shipped:")
report = check_dump(dump)
print(report, end="\n\n")
assert report.right and len(report.rows) == 8

# The same numbers under another assumption: without the norm they are wrong, and the report says where.
print("The same, had q and k not been normalised:")
report = check_dump(dump | {"opt.use_qk_l2norm": False})
print(report, end="\n\n")
assert not report.right

# Fresh: the functions that a model calls without GPU kernels, float32, gradients by autograd.
try:
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling
except ImportError as error:
    print(f"no fresh outputs: {error}")
else:
    B, T, H, K, V = 2, 100, 3, 16, 24
    torch.manual_seed(0)
    x = dict(q=torch.randn(B, T, H, K), k=torch.randn(B, T, H, K), v=torch.randn(B, T, H, V), g=-torch.rand(B, T, H), beta=torch.rand(B, T, H),
             state=torch.randn(B, H, K, V))
    ends = dict(do=torch.randn(B, T, H, V), dfinal_state=torch.randn(B, H, K, V))
    for function in modeling.torch_recurrent_gated_delta_rule, modeling.torch_chunk_gated_delta_rule:
        function = inspect.unwrap(function)              # not a kernel from somewhere else
        y = {key: value.clone().requires_grad_() for key, value in x.items()}
        o, final = function(y["q"], y["k"], y["v"], g=y["g"], beta=y["beta"], initial_state=y["state"], output_final_state=True, use_qk_l2norm_in_kernel=True)
        gradients = torch.autograd.grad((o * ends["do"]).sum() + (final * ends["dfinal_state"]).sum(), list(y.values()))
        tensors = dict(x, o=o, final_state=final, **ends, **{"d" + key: d for key, d in zip(y, gradients)})
        report = check_dump({key: value.detach().numpy() for key, value in tensors.items()} | {"opt.use_qk_l2norm": np.True_}, mechanism="gated_delta_rule")
        print(f"{function.__name__}, just now:\n{report}", end="\n\n")
        assert report.right and report.precision == "float32" and len(report.rows) == 8
