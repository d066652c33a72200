"""What the command `ortloom` does, one file per subcommand."""
