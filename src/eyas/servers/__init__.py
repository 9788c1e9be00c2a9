"""Servers seen from outside, over HTTP: what a check asks of one and what a benchmark asks of it."""
