"""The command line: `app.py` defines commands and options, one file per command carries it out."""
