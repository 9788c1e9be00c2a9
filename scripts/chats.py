"""Self-sampled chats as one small file: token ids without features, so that nobody has to sample them again.

python scripts/chats.py --shards DIR --out FILE.npz
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open


@dataclass
class Chat:
    """One conversation: token ids, where the answer begins, and how it was made."""

    tokens: list[int]
    answer: int
    temperature: float
    end: str
    """``stop``, ``len`` (cut by length) or ``rep`` (cut where it began to repeat itself)."""


def read_shard(path: Path) -> list[Chat]:
    """The chats of a feature shard."""
    with safe_open(path, "np") as file:
        tokens = file.get_tensor("tokens").tolist()
    chats, start = [], 0
    for item in json.loads(path.with_suffix(".json").read_text()):
        chats.append(Chat(tokens[start : start + item["n"]], item["plen"], item["temp"], item["why"]))
        start += item["n"]
    return chats


def write_chats(chats: list[Chat], path: Path) -> None:
    """One compressed file; ids as 16 bits, so vocabularies up to 65,536."""
    np.savez_compressed(
        path,
        tokens=np.concatenate([np.array(chat.tokens, dtype=np.uint16) for chat in chats]),
        lengths=np.array([len(chat.tokens) for chat in chats], dtype=np.uint32),
        answers=np.array([chat.answer for chat in chats], dtype=np.uint32),
        temperatures=np.array([chat.temperature for chat in chats], dtype=np.float32),
        ends=np.array([chat.end for chat in chats]),
    )


def read_chats(path: Path) -> list[Chat]:
    """The chats of a file of :func:`write_chats`."""
    with np.load(path, allow_pickle=False) as data:
        texts = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
        rest = zip(data["answers"], data["temperatures"], data["ends"], strict=True)
        return [
            Chat(text.astype(int).tolist(), int(answer), round(float(temperature), 3), str(end))
            for text, (answer, temperature, end) in zip(texts, rest, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    chats = [chat for path in sorted(args.shards.glob("*.safetensors")) for chat in read_shard(path)]
    write_chats(chats, args.out)
    answers = sum(len(chat.tokens) - chat.answer for chat in chats)
    print(f"{len(chats)} chats, {answers} answer tokens, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
