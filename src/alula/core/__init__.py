"""Values, protocols and errors. Imports the standard library and numpy, nothing else."""
