"""``hotstart run``: the environment of a program, and what it leaves behind."""
