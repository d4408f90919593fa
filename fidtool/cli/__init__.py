"""The command line, one file a command: parse, call, print. torch is imported inside the commands only."""
