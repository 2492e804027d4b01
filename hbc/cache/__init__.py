"""What hbc keeps on disk from one process to the next: compiled code, and the choices of `hbc tune`."""
