"""The worker process, which does the running, and its homes: where such a process lives and how it is spoken to."""
