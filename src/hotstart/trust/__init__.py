"""Whose entries are run here. Imported only when a remote is configured."""
