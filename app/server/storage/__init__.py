"""What the server keeps in SQLite: the queue, the history, and which files the runs wrote."""
