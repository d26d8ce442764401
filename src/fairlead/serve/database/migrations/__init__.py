"""Holds the migrations of the service's database, a file each in `versions`, carried out by `serve.database.engine`."""
