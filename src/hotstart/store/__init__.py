"""Where entries live on this machine: files that prove themselves, and what is derived from them."""
