"""What happened and why: statistics, explanations of misses, checks of the environment."""
