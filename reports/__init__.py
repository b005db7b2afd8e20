"""The scribe: versioned records of a run and their rendering."""
