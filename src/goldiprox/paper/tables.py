"""Tables 1 and 2: how large the four models are, and what a forward pass costs."""

from typing import Any

import torch

from goldiprox.models import build, count_flops, count_parameters
from goldiprox.paper.outcome import Outcome

# (model, input shape, parameters and FLOPs as printed in the paper, their unit and its decimals)
ROWS = {
    "table1": [
        ("mlp128", (1, 28, 28), (135, 136), (1e3, "k", 0, 0)),
        ("mlp512", (1, 28, 28), (932, 935), (1e3, "k", 0, 0)),
    ],
    "table2": [
        ("small_cnn", (3, 32, 32), (0.538, 0.019), (1e6, "M", 3, 3)),
        ("resnet18", (3, 32, 32), (11.17, 0.557), (1e6, "M", 2, 3)),
    ],
}
FLOPS_TOLERANCE = 0.02


def table(name: str) -> Outcome:
    """Parameters and multiply-adds of the models of a table, beside the paper's figures."""
    rows = [_row(*row) for row in ROWS[name]]
    small, large = rows
    factor = {unit: large[unit] / small[unit] for unit in ("parameters", "multiply_adds")}
    checks = {
        "parameters equal the paper's to its precision": all(r["parameters_equal"] for r in rows),
        "multiply-adds within 2% of the paper's FLOPs": all(r["flops_near"] for r in rows),
    }
    found = "; ".join(
        f"{r['model']} has {r['parameters']:,} parameters and {r['multiply_adds']:,} multiply-adds" for r in rows
    )
    claim = "; ".join(f"{r['model']} has {r['paper_parameters']} parameters and {r['paper_flops']} FLOPs" for r in rows)
    found += f", so {factor['parameters']:.2f}x the parameters and {factor['multiply_adds']:.1f}x the multiply-adds"
    notes = [
        "The paper's FLOPs count a multiply-add as one. Ours come from torch.utils.flop_counter, halved; what remains "
        "of the difference are biases, activations and pooling, which it leaves out."
    ]
    return Outcome(name, claim, found, checks, {"rows": rows, "factor": factor}, notes=notes)


def _row(
    model: str, shape: tuple[int, ...], printed: tuple[float, float], precision: tuple[float, str, int, int]
) -> dict[str, Any]:
    unit, letter, digits, flops_digits = precision
    made = build(model, shape, 10).eval()
    parameters = count_parameters(made)
    with torch.no_grad():
        multiply_adds = count_flops(lambda: made(torch.zeros(1, *shape))) // 2
    # Table 2 gives parameters in millions and FLOPs in billions; table 1 gives both in thousands.
    flops_unit, flops_letter = (1e9, "G") if letter == "M" else (unit, letter)
    return {
        "model": model,
        "parameters": parameters,
        "paper_parameters": f"{printed[0]:.{digits}f} {letter}",
        "parameters_equal": round(parameters / unit, digits) == printed[0],
        "multiply_adds": multiply_adds,
        "paper_flops": f"{printed[1]:.{flops_digits}f} {flops_letter}",
        "flops_near": abs(multiply_adds / flops_unit / printed[1] - 1) < FLOPS_TOLERANCE,
    }
