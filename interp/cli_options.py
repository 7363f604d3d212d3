"""Options that several verbs of the command line take, each in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

__all__ = [
    "NATURAL",
    "POSITIVE",
    "AnyUnit",
    "Controls",
    "Count",
    "Device",
    "GateControls",
    "Json",
    "Memory",
    "Model",
    "Only",
    "Out",
    "Padding",
    "PerResidue",
    "Seed",
    "Unit",
]

POSITIVE = validators.Number(gte=1, lte=10**12)  # more of anything fits no computer
NATURAL = validators.Number(gte=0)

Model = Annotated[
    str, Parameter(help="A zoo name (phaselens zoo lists them) or the folder of a saved model.")
]
Out = Annotated[
    Path | None,
    Parameter(
        name=["--out", "-o"],
        help="Folder for the results; a run of which a file is replaced there is removed whole.",
    ),
]
Seed = Annotated[int, Parameter(validator=NATURAL, help="Seed of the prompts.")]
PerResidue = Annotated[int, Parameter(validator=POSITIVE, help="Prompts per residue.")]
Count = Annotated[int | None, Parameter(validator=POSITIVE, help="Prompts, a multiple of the residue count.")]
Device = Annotated[str, Parameter(help="cpu, cuda or cuda:N.")]
Only = Annotated[
    list[str] | None, Parameter(help="Labels of the units to change, e.g. 0.1; repeatable; all if left out.")
]
Memory = Annotated[
    str, Parameter(help="Most memory for activations at a time, e.g. 512MiB; decides the batches.")
]
Json = Annotated[bool, Parameter(help="Print one JSON object instead of a table.")]
Padding = Annotated[
    Literal["in_sequence", "prefix"],
    Parameter(
        help="How the target reaches a residue: gaps between records vary, or all records move together."
    ),
]
Controls = Annotated[
    bool, Parameter(help="Hold it against strides that mean nothing, and a model with random weights.")
]
GateControls = Annotated[
    bool,
    Parameter(
        help="Hold profiles against random weights, --cycle against the predictions of all other shifts and of none, "
        "and --parts against other heads' phases and the mean gate moved by half a window. No placebo strides: gates "
        "are counted by offset."
    ),
]
Unit = Annotated[Literal["kv_head", "head", "layer"], Parameter(help="What is changed, one at a time.")]
AnyUnit = Annotated[
    Literal[
        "kv_head", "head", "layer", "mlp", "engram", "exact_branch", "entry_branch", "target_entry", "picks",
        "gate_offset",
    ],
    Parameter(
        help="What is changed, one at a time: outputs, an n-gram memory, a layer's exact window or its "
        "entries, the entries that hold the target, those entries among its picks, one offset of its gates."
    ),
]  # fmt: skip
