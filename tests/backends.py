"""Which kernels' backends run here."""

from eyas.kernels.native import load_library

RUNNABLE = ("eager", "onednn", *(["native"] if load_library() is not None else []))
"""``native`` where the library was built; test_native_library.py holds that it is, wherever there is a compiler."""
