"""Speculation as pure algorithms: proposals, trees, acceptance, sampling, the round."""
