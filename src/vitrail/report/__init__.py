"""Pages that open offline: the report of a run, and the explanation of single images."""
