"""The fault catalogue: every kind that a check can name, with symptom, cause, how it is found, and the fix.

docs/faults.md is generated from here, and ``eyas explain KIND`` prints an entry.
"""

from __future__ import annotations

from eyas.check.kind import Kind
from eyas.check.kinds_endpoint import ENDPOINT_KINDS
from eyas.check.kinds_flags import FLAG_KINDS
from eyas.check.kinds_search import SEARCH_KINDS
from eyas.check.kinds_static import STATIC_KINDS

KINDS: dict[str, Kind] = {
    **SEARCH_KINDS,
    **STATIC_KINDS,
    **FLAG_KINDS,
    **ENDPOINT_KINDS,
}
