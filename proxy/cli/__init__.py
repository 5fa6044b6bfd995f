"""One file per command: argument parsing and printing, nothing else."""
