"""Make a draft checkpoint of what scripts/train_draft.py saved.

python scripts/export_draft.py --target FOLDER --trained DIR --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from chats import Chat, read_chats
from safetensors.torch import load_file
from torch import Tensor
from ttt import fold_scales, make_config

from eyas.contract import Contract, DataSource
from eyas.draft.checkpoint import draft_facts, write_draft
from eyas.draft.model import DraftModel
from eyas.engine.session import facts_of, open_session
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


def contract_of(
    target: Path, model: DraftModel, chats: list[Chat], source: DataSource, measured: Path | None
) -> Contract:
    """What the draft was trained for; ``measured`` is the JSON of ``eyas demo``, whose accept lengths to expect."""
    session = open_session(target, None)
    facts = draft_facts(model, session.target, facts_of(target, session.tokenizer))
    assert facts.target is not None
    shape = facts.target.model_dump()
    return Contract.model_validate(
        facts.model_dump(
            include={"tokenizer_sha256", "chat_template_sha256", "taps", "norms", "rope", "vocab_map_sha256"}
        )
        | {
            "schema_version": 1,
            "target": shape | {"weights_sha256": facts.weights_sha256},
            "rendering": {"thinking": "none", "system_prompt": "none", "system_prompt_text": None},
            "longest_trained_position": max(len(chat.tokens) for chat in chats) - 2,
            "features": {"dtype": "float32", "quantisation": None},
            "loss_mask_rule": "self-sampled-turns: every token after the template's system prompt",
            "data": {
                "conversations": len(chats),
                "answer_tokens": sum(len(chat.tokens) - chat.answer for chat in chats),
                "sources": (source.model_dump(),),
            },
            "expected": tuple(expected_of(json.loads(measured.read_text()))) if measured else (),
        }
    )


def expected_of(demo: dict) -> list[dict]:
    """The accept lengths of a demo's JSON, as the contract names them."""
    steps = demo["speculation"]["num_steps"]
    expected = []
    for name, figures in demo["sets"].items():
        both = figures["speculative"]
        expected.append(
            {
                "prompt_set": f"eyas demo: {name}",
                "num_steps": steps,
                "temperature": 0.0,
                "draft_sampling": "one-hot",
                "accept_length": both["accept_length"],
                "low": both["accept_length_low"],
                "high": both["accept_length_high"],
                "ceiling": both["ceiling"],
            }
        )
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True, help="the trainer's --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--taps", type=int, nargs="+", default=[2, 15, 27])
    parser.add_argument("--dtype", default="bf16", help="fp32 or bf16")
    parser.add_argument("--chats", type=Path, help="what it was trained on (scripts/chats.py); writes a contract")
    parser.add_argument("--source", default="self-sampled by the target", help="name of the data, for the contract")
    parser.add_argument("--licence", default="Apache-2.0", help="its licence")
    parser.add_argument("--measured", type=Path, help="the JSON of `eyas demo`: accept lengths to expect")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = trained_draft(args.target, load_file(args.trained / "state.safetensors"), tuple(args.taps))
    contract = None
    if args.chats:
        source = DataSource(name=args.source, licence=args.licence)
        contract = contract_of(args.target, model, read_chats(args.chats), source, args.measured)
    architecture = architecture_of(read_config(args.target))
    write_draft(args.out, model, architecture, contract, dtype=parse_dtype(args.dtype))
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
