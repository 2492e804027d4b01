"""`hbc tune`: candidates measured against each other on this machine, and the choices kept for later."""
