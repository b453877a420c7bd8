"""Where entries live for the fleet. Imported only when a remote is configured."""
