"""The native library: sources, and ``build``, which compiles them."""
