"""Stage 2: samples → features, in shards that training reads by memory map."""

from eyas.capture.job import CaptureJob, Estimate, plan_capture
from eyas.capture.run import CaptureReport, run_capture

__all__ = ["CaptureJob", "CaptureReport", "Estimate", "plan_capture", "run_capture"]
