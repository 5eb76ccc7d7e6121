"""One file per runtime, the only importers of vendors."""
