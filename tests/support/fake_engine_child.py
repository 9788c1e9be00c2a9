"""An engine's process without an engine, for what happens around one. The model's name says how it behaves."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from eyas.serve.frames import framed, read_frame
from eyas.serve.wire import Ask, Drop, Failure, Piece, Ready, Stop, decode_to_engine, encode


def send(*messages: object) -> None:
    sys.stdout.buffer.write(b"".join(framed(encode(message)) for message in messages))
    sys.stdout.buffer.flush()


def answer(ask: Ask, behaviour: str, held: list[str]) -> None:
    piece = Piece(ask.id, [1], ["a"], [0], cached=0)
    match behaviour:
        case "crashes":
            send(piece)
            os._exit(7)
        case "says why":
            send(piece, Failure("", "engine.died", "ValueError in step:1", "report it"))
            os._exit(1)
        case "hangs":
            time.sleep(60)
        case "holds":
            held.append(ask.id)
        case _:
            send(piece, Piece(ask.id, [2], [f"b{len(held)}"], [1], finish="stop"))


def main() -> None:
    # Not read as the real one reads it, which takes seconds to import.
    settings = json.loads(read_frame(sys.stdin.buffer) or b"")
    behaviour, _, journal = settings["model"].partition("|")
    if behaviour == "cannot load":
        send(Failure("", "contract.mismatch", "taps differ", "use the other draft"))
        sys.exit(2)
    send(Ready(settings["model"], 512, 1024, settings["num_slots"], {}))
    held: list[str] = []
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        match message := decode_to_engine(frame):
            case Ask():
                answer(message, behaviour, held)
            case Drop():
                Path(journal).write_text(message.id) if journal else None
            case Stop():
                for id_ in held:
                    send(Piece(id_, [], [], [], finish="abort" if message.now else "length"))
                return


if __name__ == "__main__":
    main()
