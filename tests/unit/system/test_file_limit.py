from __future__ import annotations

import resource

from pipeline.system.resources import raise_file_limit


def test_as_many_files_may_be_open_as_the_user_may_have():
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, most))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
