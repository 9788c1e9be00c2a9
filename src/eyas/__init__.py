"""Eyas trains, proves, plans and serves EAGLE-3 draft models for large language models."""

__version__ = "0.1.0"
