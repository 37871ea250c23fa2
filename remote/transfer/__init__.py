"""This host pulls from other hosts, for `inv pull --to HOST:FOLDER`; the engine itself is `remote/shared/transfer`."""
