"""The processes that share each layer, over torch.distributed: gloo between CPUs, NCCL between GPUs.

They meet by a file in a folder of their own, so that no port is chosen; gloo's own connections stay on the loopback
interface. What they tell each other is tensors of numbers and bytes, never objects.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from eyas.errors import EyasError

PATIENCE_SECONDS = 300.0
"""For which a rank waits for the others in one exchange, loading included. One that died is noticed at once."""
MEETING = "ranks"
"""The file in the folder."""
LENGTH = struct.Struct("<q")
PACKET_BYTES = 1024
"""Of a message that is told, what goes in its first exchange, its length included; most are shorter."""


class Ranks:
    """This process, number ``rank`` of ``size``. Every method is called by all ranks, in the same order.

    All but the constructor raise ``engine.died`` where another rank has ended, or keeps this one waiting for
    ``patience`` seconds.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        device: torch.device | str = "cpu",
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Meet the others in ``folder``, which is empty before and the same for all. One meeting a process.

        ``device``: of the tensors that are shared; each rank has its own GPU. Raises ``engine.died`` if they do not
        come.
        """
        assert 0 <= rank < size, (rank, size)
        assert not dist.is_initialized(), "this process is a rank already"
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self.patience = patience
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        store = dist.FileStore(str(folder / MEETING), size)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        with self._others_live():
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=patience)
            )

    @property
    def is_first(self) -> bool:
        """The rank that hears of requests, measures, and answers."""
        return self.rank == 0

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, of the part's shape and dtype, with the same bits on every rank.

        The parts are gathered and added in the order of ranks, in fp32. An all-reduce would add an element's parts in
        an order that depends on where it lies in the tensor, so that a row's bits would depend on what else is in the
        batch.
        """
        parts = self._gather(part)
        total = parts[0].float()
        for other in parts[1:]:
            total = total + other
        return total.to(part.dtype)

    def join(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """All ranks' parts side by side in the last dimension; ``widths``: how wide each rank's part is."""
        assert len(widths) == self.size, widths
        assert part.shape[-1] == widths[self.rank], (part.shape, widths)
        # Backends exchange equal shapes only.
        padded = torch.nn.functional.pad(part, (0, max(widths) - part.shape[-1]))
        parts = self._gather(padded)
        return torch.cat([other[..., :width] for other, width in zip(parts, widths, strict=True)], -1)

    def tell(self, message: bytes | None = None) -> bytes:
        """The first rank's message, on every rank. The others give none."""
        assert (message is not None) == self.is_first, "the first rank tells, the others are told"
        body = LENGTH.pack(len(message)) + message if message is not None else b""
        head = self._broadcast(body[:PACKET_BYTES], PACKET_BYTES)
        (length,) = LENGTH.unpack(head[: LENGTH.size])
        rest = LENGTH.size + length - PACKET_BYTES
        if rest <= 0:
            return head[LENGTH.size : LENGTH.size + length]
        return head[LENGTH.size :] + self._broadcast(body[PACKET_BYTES:], rest)

    def tell_numbers(self, numbers: Sequence[int] | None = None) -> list[int]:
        """The same of whole numbers of 64 bits."""
        told = self.tell(None if numbers is None else np.asarray(numbers, np.int64).tobytes())
        return [int(number) for number in np.frombuffer(told, np.int64)]

    def close(self) -> None:
        """Leave; the process may not meet the same ranks again."""
        dist.destroy_process_group()

    # ----------------------------------------------------------------------------------------------------------------

    def _gather(self, part: Tensor) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._others_live():
            dist.all_gather(parts, part)
        return parts

    def _broadcast(self, mine: bytes, count: int) -> bytes:
        """``count`` bytes of the first rank, which pads its own with zeros."""
        packet = np.zeros(count, np.uint8)
        packet[: len(mine)] = np.frombuffer(mine, np.uint8)
        told = torch.from_numpy(packet)
        with self._others_live():
            dist.broadcast(told, 0)
        return told.numpy().tobytes()

    @contextmanager
    def _others_live(self) -> Iterator[None]:
        """What torch.distributed comes to, as an error with a code."""
        try:
            yield
        except RuntimeError as error:
            # The backends say the same in a few ways, and none has a type of its own.
            cause = f"rank {self.rank} of {self.size} lost the others: {str(error).splitlines()[0]}"
            raise EyasError("engine.died", cause, "see what the other rank said, and start the engine again") from error


def _loopback() -> str:
    """The name of the interface that leads nowhere else."""
    return next(
        name for name, addresses in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in addresses)
    )
