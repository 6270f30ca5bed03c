"""Where drafted code runs: a process without network, environment, secrets or a file system it could write to."""
