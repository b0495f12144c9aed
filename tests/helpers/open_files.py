"""A process with as many open files as a server that has a thousand connections."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

MOST_OF_SELECT = 1_024


@contextmanager
def beyond_select() -> Iterator[None]:
    """Whatever is opened meanwhile has a number that `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_OF_SELECT
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this machine allows {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    files = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while files[-1] < MOST_OF_SELECT:
            files.append(os.dup(files[0]))
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
