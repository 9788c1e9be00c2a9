"""Stage: an OpenAI-compatible server over the engine."""
