"""Demonstrations that compose stages."""
