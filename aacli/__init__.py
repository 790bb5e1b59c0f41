"""The command line: parse, load the recipe, call ``run``, map errors to exit codes."""
