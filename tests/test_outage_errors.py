"""Errors of all libraries are recognised as outages, and no other error is."""

from __future__ import annotations

import errno
import http.client
import json
import sqlite3

import aiohttp
import botocore.exceptions
import fsspec.exceptions
import kombu.exceptions
import psycopg.errors
import pytest
import redis.exceptions
import sqlalchemy.exc
from s3fs.errors import translate_boto_error

from app.outages import (
    DatabaseUnavailable,
    Unavailable,
    broker_is_unavailable,
    database_is_unavailable,
    is_lost_race,
    is_not_migrated,
    store_is_unavailable,
)
from app.storage.object_store import StoreUnavailable


def is_away(error: Exception) -> bool:
    """Whether the error is an outage."""
    return database_is_unavailable(error) or broker_is_unavailable(error) or store_is_unavailable(error)


def wrap_error(error: Exception) -> sqlalchemy.exc.DBAPIError:
    made = sqlalchemy.exc.DBAPIError.instance("SELECT 1", {}, error, Exception)
    assert isinstance(made, sqlalchemy.exc.DBAPIError)
    return made


def postgres(state: str) -> sqlalchemy.exc.DBAPIError:
    return wrap_error(psycopg.errors.lookup(state)("so it is"))


@pytest.mark.parametrize(
    "state",
    ["08006", "25006", "25P03", "53100", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "58030", "XX001"],
)
def test_errors_of_an_unavailable_postgresql_are_outages(state: str) -> None:
    assert database_is_unavailable(postgres(state)) and is_away(postgres(state))
    assert not is_lost_race(postgres(state))


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (postgres("42P01"), True),
        (postgres("42703"), True),
        (postgres("42601"), False),
        (postgres("57P01"), False),
        (wrap_error(sqlite3.OperationalError("no such table: studies")), True),
        (wrap_error(sqlite3.OperationalError("table slots has no column named kind")), True),
        (wrap_error(sqlite3.OperationalError("database is locked")), False),
        (wrap_error(sqlite3.IntegrityError("no such table")), False),
    ],
)
def test_a_schema_from_before_the_migrations_is_recognised(error: Exception, is_so: bool) -> None:
    assert is_not_migrated(error) is is_so


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("connection refused"),  # no state: the error is not the server's
        psycopg.errors.ConnectionTimeout("too slow"),
        psycopg.InterfaceError("the connection is closed"),
        sqlite3.OperationalError("database is locked"),
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        sqlite3.OperationalError("disk I/O error"),
        sqlite3.DatabaseError("file is not a database"),
    ],
)
def test_driver_errors_of_an_unavailable_database_are_outages(error: Exception) -> None:
    assert database_is_unavailable(error) and database_is_unavailable(wrap_error(error)) and is_away(wrap_error(error))


def test_an_exhausted_pool_is_an_outage() -> None:
    assert database_is_unavailable(sqlalchemy.exc.TimeoutError("QueuePool limit reached"))


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_lost_race_is_not_an_outage(state: str) -> None:
    assert is_lost_race(postgres(state))
    assert not is_away(postgres(state))


@pytest.mark.parametrize(
    "error",
    [
        postgres("23505"),
        postgres("42601"),
        postgres("22P02"),
        wrap_error(sqlite3.IntegrityError("UNIQUE constraint failed")),
        wrap_error(sqlite3.ProgrammingError("Incorrect number of bindings")),
        ValueError("x"),
        KeyError("x"),
        json.JSONDecodeError("x", "y", 0),
        MemoryError(),
    ],
)
def test_request_errors_are_no_outages(error: Exception) -> None:
    assert not is_away(error)
    assert not is_lost_race(error)


def s3(code: str, status: int) -> botocore.exceptions.ClientError:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "GetObject")


@pytest.mark.parametrize(
    "error",
    [
        botocore.exceptions.EndpointConnectionError(endpoint_url="http://s3"),
        botocore.exceptions.HTTPClientError(error="x"),
        botocore.exceptions.ReadTimeoutError(endpoint_url="http://s3"),
        botocore.exceptions.FlexibleChecksumError(error_msg="x"),
        botocore.exceptions.NoCredentialsError(),
        aiohttp.ClientPayloadError("x"),
        aiohttp.ServerDisconnectedError(),
        TimeoutError(),
        fsspec.exceptions.FSTimeoutError(),
        http.client.IncompleteRead(b""),
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Forbidden"),
        s3("SlowDown", 503),
        s3("InternalError", 500),
        translate_boto_error(s3("SlowDown", 503)),
        translate_boto_error(s3("AccessDenied", 403)),
    ],
)
def test_errors_of_an_unavailable_store_are_outages(error: Exception) -> None:
    assert store_is_unavailable(error) and is_away(error)


@pytest.mark.parametrize("error", [FileNotFoundError("x"), s3("NoSuchKey", 404), translate_boto_error(s3("404", 404))])
def test_a_missing_object_is_no_outage(error: Exception) -> None:
    assert not store_is_unavailable(error) and not is_away(error)


def test_a_missing_bucket_is_no_missing_object() -> None:
    try:
        raise translate_boto_error(s3("NoSuchBucket", 404)) from s3("NoSuchBucket", 404)
    except FileNotFoundError as error:
        assert store_is_unavailable(error)


@pytest.mark.parametrize(
    "error",
    [
        kombu.exceptions.OperationalError("x"),
        redis.exceptions.ConnectionError("x"),
        redis.exceptions.TimeoutError("x"),
        redis.exceptions.BusyLoadingError("x"),
        redis.exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ConnectionResetError(),
    ],
)
def test_errors_of_an_unavailable_broker_are_outages(error: Exception) -> None:
    assert broker_is_unavailable(error) and is_away(error)


def test_our_own_outage_errors_are_outages() -> None:
    assert issubclass(DatabaseUnavailable, Unavailable) and issubclass(StoreUnavailable, Unavailable)
