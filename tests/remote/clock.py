"""A clock that is off, for a whole process: what it, its libraries and its request signing take for the time.

Needs a C compiler: what is built stands before libc and adds ``TEST_SKEW`` seconds to the time of day.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long skew(void) {
    const char *text = getenv("TEST_SKEW");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (!status && id == CLOCK_REALTIME) now->tv_sec += skew();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
"""


def skewed(directory: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is so many seconds fast."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, to set the clock of a process")
    library = directory / "clock.so"
    if not library.exists():
        (directory / "clock.c").write_text(_SOURCE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", str(library), str(directory / "clock.c"), "-ldl"], check=True
        )
    before = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{before}".rstrip(":"), "TEST_SKEW": str(seconds)}
