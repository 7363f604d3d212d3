"""What is timed: a model, the prompts it is given, and the units that are knocked out."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from hooks.errors import PhaselensError
from hooks.sites import HookedModel
from interp import engine
from interp.phases import sample_blocks
from interp.rng import derive_seed, torch_rng
from interp.tasks.prompts import Prompts, Task
from interp.units import Unit, units

__all__ = ["Case", "Loaded", "RandomTask", "deepseek_like", "random_config"]

_RANDOM = re.compile(r"random-(\d+)")


@dataclass(frozen=True)
class Case:
    """One measurement, as plain values that travel between processes.

    Parameters
    ----------
    model : str
        A zoo name, a folder, or "random-L": L layers of d_model 1024, 8 KV heads, random weights.
    n, n_calibration : int
        Prompts that are measured, and prompts whose mean replaces a unit; whole blocks of R.
    length : int
        T of the random models' prompts; the zoo's prompts have the length of their task.
    unit : str
        What is knocked out, one at a time.
    loop_units : int or None
        Loops run so many units, evenly spaced, and their time is scaled up to all of them; None runs all.
    memory, threads, seed : int
        Budget of activations in bytes; threads of every process; seed of prompts and weights.
    device : str
        Where the model and its prompts are.
    """

    model: str
    n: int
    n_calibration: int
    length: int = 512
    unit: str = "kv_head"
    loop_units: int | None = None
    memory: int = engine.MEMORY
    threads: int = 1
    seed: int = 0
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class RandomTask:
    """Random tokens with random answers: nothing to learn from but time.

    Parameters
    ----------
    d_vocab, length : int
        Vocabulary and T.
    """

    d_vocab: int
    length: int
    modulus: int = 1

    def sample(self, n: int, *, seed: int) -> Prompts:
        """Draw n prompts."""
        generator = torch_rng(seed, "bench")
        drawn = torch.randint(self.d_vocab, (n, self.length + 1), generator=generator)
        zero = torch.zeros(n, dtype=torch.long)
        return Prompts(drawn[:, :-1], drawn[:, -1], zero, self.length - 1, zero, torch.arange(n), 1)

    def describe(self) -> dict[str, Any]:
        """Name and sizes."""
        return {"task": "random", "d_vocab": self.d_vocab, "length": self.length}


@dataclass(frozen=True)
class Loaded:
    """A case with its model, prompts and units in this process.

    Attributes
    ----------
    case : Case
        What was asked for.
    model, task : HookedModel, Task
        Loaded or built.
    prompts, calibration : Prompts
        Measured; and those the means come from.
    units : list of Unit
        All units.
    """

    case: Case
    model: HookedModel
    task: Task
    prompts: Prompts
    calibration: Prompts
    units: list[Unit]

    @classmethod
    def of(cls, case: Case) -> Loaded:
        """Load the model and draw the prompts."""
        model, task = _model_and_task(case)
        prompts = sample_blocks(task, case.n, case.seed)
        calibration = sample_blocks(task, case.n_calibration, derive_seed(case.seed, "calibration"))

        def here(drawn: Prompts) -> Prompts:
            return replace(drawn, tokens=drawn.tokens.to(model.device), answer=drawn.answer.to(model.device))

        found = units(model, case.unit, prompts)
        return cls(case, model, task, here(prompts), here(calibration), found)

    def smaller(self) -> Loaded:
        """The same with one block of prompts and one unit a loop, to warm up on."""
        few = slice(0, self.task.modulus)
        case = replace(self.case, n=self.task.modulus, n_calibration=self.task.modulus, loop_units=1)
        return replace(
            self, case=case, prompts=self.prompts.select(few), calibration=self.calibration.select(few)
        )

    def loop_units(self) -> list[int]:
        """Which units loops run."""
        count = min(self.case.loop_units or len(self.units), len(self.units))
        return [i * len(self.units) // count for i in range(count)]

    def chunks(self, prompts: Prompts) -> list[range]:
        """Batches every way of computing uses: those of the engine."""
        variants = len(self.units) if prompts is self.prompts else 0
        return engine.chunks(self.model, len(prompts), prompts.tokens.shape[1], variants, self.case.memory)


def _model_and_task(case: Case) -> tuple[HookedModel, Task]:
    found = _RANDOM.fullmatch(case.model)
    if found is None:
        from hooks import load
        from interp.tasks.recall import RecallTask

        model = load(case.model, device=case.device)
        return model, RecallTask.for_model(model)
    from hooks.transformer import CompressedTransformer

    model = CompressedTransformer(random_config(int(found[1]), case.seed))
    model = model.to(case.device)
    model.name = case.model
    return model, RandomTask(model.cfg.d_vocab, case.length)


def random_config(n_layers: int, seed: int = 0) -> Any:
    """Sizes of a 0.6-billion-parameter model where L = 28: d_model 1024, 16 heads of 128, 8 KV heads, W8/S8.

    Raises
    ------
    PhaselensError
        For no layer at all.
    """
    from hooks.config import ModelConfig

    if n_layers < 1:
        raise PhaselensError(f"random-{n_layers} has no layer; valid: random-1 or more, e.g. random-28")
    return ModelConfig(
        n_layers=n_layers, d_model=1024, n_heads=16, n_kv_heads=8, d_head=128, d_mlp=3072, d_vocab=1024, seed=seed,
        window=8, stride=8, exact_window=16,
    )  # fmt: skip


def deepseek_like(layers: int = 8, *, d_model: int = 1024, seed: int = 0) -> Any:
    """Layers like DeepSeek-V4's: window 128, CSA (W8/S4, top 512) and HCA (W=S=128) in turn, 16 heads of 128.

    The indexer has 4 heads of 64. The MLP is a dense one of 2·d_model.
    """
    from hooks.config import ModelConfig

    csa = [i % 2 == 0 for i in range(layers)]
    settings: dict[str, Any] = dict(
        n_layers=layers, d_model=d_model, n_heads=16, n_kv_heads=1, d_head=128, d_mlp=2 * d_model, d_vocab=1024,
        seed=seed, window=tuple(8 if c else 128 for c in csa), stride=tuple(4 if c else 128 for c in csa),
        payload=tuple("two_series" if c else "shared" for c in csa), gate="vector", tied_kv=True, rope_dims=64,
        exact_window=128, inverse_rope=True, sink=True, index_topk=tuple(512 if c else None for c in csa),
        index_heads=tuple(4 if c else None for c in csa), index_dim=tuple(64 if c else None for c in csa),
    )  # fmt: skip
    return ModelConfig(**settings)
