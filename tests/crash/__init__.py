"""Real processes, killed and damaged: what was acknowledged is there afterwards, in order, once."""
