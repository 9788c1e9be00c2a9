"""A draft in one layout becomes the same draft in another: key by key, and checked by reading it back."""

from eyas.export.convert import Asked, Export, export_draft
from eyas.export.goal import Goal

__all__ = ["Asked", "Export", "Goal", "export_draft"]
