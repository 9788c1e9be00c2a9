"""What SGLang and vLLM do with an EAGLE-3 draft, as data by version: where their words become ours.

``engines``: versions · ``taps``: layer ids · ``checkpoint``: config keys · ``limits``: what a layout cannot
express · ``flags``: what asked flags become · ``speculators``: that package's layout · ``draft_keys``: what becomes of
each key of a config in another layout · ``launch``: a launch command → typed flags, and ``launch_resolve`` what becomes
of them, by the tables ``launch_sglang`` and ``launch_vllm`` · ``counters``: figures of speculation in one definition.
"""
