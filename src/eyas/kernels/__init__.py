"""Small-row linear layers, attention and norms behind one interface; ``eager`` is the truth."""

from eyas.kernels.backend import Backend, FusedLayer, LayerShape, Linear, Quantization, get_backend
from eyas.kernels.rows import KVCache, Part, Rows

__all__ = ["Backend", "FusedLayer", "KVCache", "LayerShape", "Linear", "Part", "Quantization", "Rows", "get_backend"]
