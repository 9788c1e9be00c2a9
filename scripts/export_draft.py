"""Make a draft checkpoint of what scripts/train_draft.py saved.

python scripts/export_draft.py --target FOLDER --trained DIR --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from ttt import fold_scales, make_config

from eyas.draft.checkpoint import write_draft
from eyas.draft.model import DraftModel
from eyas.models.config import architecture_of, read_config
from eyas.models.registry import parse_dtype


def trained_draft(target: Path, state: dict[str, Tensor], taps: tuple[int, ...]) -> DraftModel:
    """The model of a trainer's state, with the scales of the taps folded into fc."""
    state = dict(state)
    scales = state.pop("scales")
    assert len(scales) == len(taps), f"{len(scales)} scales for {len(taps)} taps"
    model = DraftModel(make_config(target, taps, len(state["d2t"])))
    model.load_state_dict(state)
    fold_scales(model, scales)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True, help="the trainer's --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--taps", type=int, nargs="+", default=[2, 15, 27])
    parser.add_argument("--dtype", default="bf16", help="fp32 or bf16")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = trained_draft(args.target, load_file(args.trained / "state.safetensors"), tuple(args.taps))
    architecture = architecture_of(read_config(args.target))
    write_draft(args.out, model, architecture, dtype=parse_dtype(args.dtype))
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
