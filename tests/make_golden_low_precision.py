"""Record what tensor cores make of the gated delta rule and of attention, once, on an NVIDIA GPU with PyTorch: the files under
tests/golden/low_precision.

    python tests/make_golden_low_precision.py [FOLDER]

Float32 inputs; layout bhtd.  The recorded files come from an H200, torch 2.11.0, CUDA 13.0.  tf32 and bfloat16: the chunk formula,
its matrix products in TF32, or of bfloat16 operands; no_scale: the same in TF32 without the scale; state: token by token, the state
stored in bfloat16; flash: torch's scaled_dot_product_attention, its kernel for bfloat16.
"""
import sys
from pathlib import Path

import numpy as np

B, T, H, K, V, C = 1, 130, 2, 32, 24, 64


def chunks(x, scale, product):
    """The gated delta rule: chunks of C tokens, gates as cumulative sums."""
    import torch
    S, o = x["state"], []
    for s in range(0, T, C):
        q, k, v, g, beta = (x[name][:, :, s:s + C] for name in ("q", "k", "v", "g", "beta"))
        G, b, n = g.cumsum(-1), beta[..., None], q.shape[2]
        a, D = G.exp()[..., None], (G[..., :, None] - G[..., None, :]).tril().exp().tril()
        L = (b * product(k, k.mT) * D).tril(-1)
        one = torch.eye(n, device=q.device)
        X = torch.linalg.solve_triangular(one + L, one.expand_as(L), upper=False, unitriangular=True)
        d = product(X, b * (v - a * product(k, S)))
        o.append(a * product(q * scale, S) + product(product(q * scale, k.mT) * D, d))
        S = a[..., -1:, :] * S + product(((G[..., -1:] - G).exp()[..., None] * k).mT, d)
    return torch.cat(o, 2), S


def tokens(x, scale):
    """The same token by token; the state is stored in bfloat16."""
    import torch
    S, o = x["state"], []
    for t in range(T):
        q, k, v, g, beta = (x[name][:, :, t] for name in ("q", "k", "v", "g", "beta"))
        F = g.exp()[..., None, None] * S
        d = beta[..., None] * (v - (k[..., None, :] @ F)[..., 0, :])
        F = F + k[..., :, None] * d[..., None, :]
        o.append(scale * (q[..., None, :] @ F)[..., 0, :])
        S = F.bfloat16().float()
    return torch.stack(o, 2), F


def main(folder):
    import torch
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    normal, uniform = (lambda *shape: torch.randn(shape, device="cuda")), (lambda *shape: torch.rand(shape, device="cuda"))
    x = dict(q=normal(B, H, T, K), k=torch.nn.functional.normalize(normal(B, H, T, K), dim=-1), v=normal(B, H, T, V),
             g=-0.5 * uniform(B, H, T), beta=uniform(B, H, T),
             state=normal(B, H, K, V))

    def save(name, mechanism, **arrays):
        arrays = {key: y.float().cpu().numpy() for key, y in arrays.items()}
        np.savez_compressed(folder / f"{name}.npz", mechanism=mechanism, layout="bhtd", **arrays)

    plain, narrow = torch.matmul, lambda a, b: torch.matmul(a.bfloat16(), b.bfloat16()).float()
    for name, tf32, run in (("tf32", True, lambda: chunks(x, K ** -0.5, plain)), ("no_scale", True, lambda: chunks(x, 1.0, plain)),
                            ("bfloat16", False, lambda: chunks(x, K ** -0.5, narrow)), ("state", False, lambda: tokens(x, K ** -0.5))):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        o, S = run()
        save(name, "gated_delta_rule", **x, o=o, final_state=S)
    attention, kernels = torch.nn.functional.scaled_dot_product_attention, torch.nn.attention.SDPBackend
    q, k, v = x["q"], normal(B, H, T, K), normal(B, H, T, K)
    with torch.nn.attention.sdpa_kernel(kernels.FLASH_ATTENTION):
        save("flash", "softmax_attention", q=q, k=k, v=v, o=attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent / "golden" / "low_precision"))
