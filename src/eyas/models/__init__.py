"""Targets: the Llama family by our own definition, every other causal model through transformers."""
