"""What can be wrong with a database, each with its own type and code."""

from __future__ import annotations

from hf_adapters.errors import HfAdaptersError


class StoreError(HfAdaptersError):
    """The database cannot be used."""

    code = "E_STORE"


class NotADatabase(StoreError, ValueError):
    """The path leads to something that is not an SQLite database."""

    code = "E_STORE_NOT_SQLITE"


class NotOurDatabase(StoreError, ValueError):
    """A database, but of another program."""

    code = "E_STORE_FOREIGN"


class DirectoryMissing(StoreError, ValueError):
    """The folder that should hold the database does not exist."""

    code = "E_STORE_NO_DIRECTORY"


class ReadOnlyStore(StoreError):
    """The database may be read but not written."""

    code = "E_STORE_READ_ONLY"


class NotPermitted(StoreError):
    """The server's user has not the rights that are needed."""

    code = "E_STORE_PERMISSION"


class StoreLocked(StoreError):
    """Another process kept the database locked for longer than the busy timeout."""

    code = "E_STORE_LOCKED"


class DiskFull(StoreError):
    """There is no room left for the database."""

    code = "E_STORE_DISK_FULL"


class StoreUnreachable(StoreError):
    """The database server does not answer, or its driver is not installed."""

    code = "E_STORE_UNREACHABLE"


class SchemaMissing(StoreError):
    """The database has no tables yet, or tables of an older version."""

    code = "E_STORE_SCHEMA_OLD"


class SchemaTooNew(StoreError):
    """The database was written by a newer version of this project."""

    code = "E_STORE_SCHEMA_NEW"


class NoSuchRow(StoreError, LookupError):
    """Something was asked for that the store does not hold."""

    code = "E_STORE_NO_ROW"


class SourceAmbiguous(StoreError, ValueError):
    """The store holds several rankings and none was named."""

    code = "E_STORE_SOURCE"
