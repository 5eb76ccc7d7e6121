"""How fast? Statistics and load, in turns."""
