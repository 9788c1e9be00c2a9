"""Stage: a server's address → how fast it answers, alone or beside another. Knows nothing of the engine."""
