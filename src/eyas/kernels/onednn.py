"""The oneDNN backend: weights packed once; a row's bits do not depend on how many rows share the call.

Torch's own ``F.linear`` gives other bits for one row than for several and, below 8 rows, costs nearly as much
per row as one row alone. The packed kernel has neither fault on the CPUs measured (benchmarks/), so it is the
default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.kernels.backend import Quantization
from eyas.kernels.eager import Eager


class OneDNN(Eager):
    """Packed matrices on the CPU; norms, rotary and attention are the eager ones.

    bf16 without bf16 instructions: the weights' values stay bf16, but they are packed, and activations kept,
    as fp32. That is twice the bytes, and still faster and closer to exact than emulated bf16.
    """

    name = "onednn"
    copies_weights = True

    def __init__(self, quantization: Quantization = "none") -> None:
        super().__init__(quantization)
        if quantization != "none":
            cause = f"backend onednn has no weights of {quantization}"
            raise EyasError("flags.contradiction", cause, "use --backend native")
        if not torch.backends.mkldnn.is_available():
            raise EyasError("flags.range", "this build of torch has no oneDNN", "use --backend eager")
        self._native_bf16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def packed_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return self.activation_dtype(weight_dtype)

    def activation_dtype(self, weight_dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if weight_dtype == torch.bfloat16 and self._native_bf16 else torch.float32

    def pack(self, weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
        if weight_OI.device.type != "cpu":
            raise EyasError(
                "flags.contradiction", f"backend onednn with device {weight_OI.device}", "use --backend eager"
            )
        dtype = self.activation_dtype(weight_OI.dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.to(dtype).contiguous())
        self.packed_bytes += weight_OI.numel() * dtype.itemsize
        bias = None if bias_O is None else bias_O.to(dtype)
        linear = torch.ops.mkldnn._linear_pointwise

        def run(x: Tensor) -> Tensor:
            y = linear(x, packed, bias, "none", [], "")
            assert isinstance(y, Tensor)
            return y

        return run
