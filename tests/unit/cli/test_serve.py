"""Scripts that are served together: each is a module of its own."""

from __future__ import annotations

from pipeline.cli.serve import module_names


def test_scripts_of_one_name_are_distinguished_by_their_folders():
    scripts = ["/a/serve.py", "/b/serve.py", "/c/b/serve.py", "/other.py"]
    assert module_names(scripts) == {
        "serve": "/a/serve.py",
        "b_serve": "/b/serve.py",
        "c_b_serve": "/c/b/serve.py",
        "other": "/other.py",
    }


def test_the_name_of_a_module_that_is_there_is_left_to_it(tmp_path):
    script = tmp_path / "app" / "msgspec.py"  # a module that is imported, and one that is not
    unused = tmp_path / "app" / "wave.py"
    assert module_names([str(script), str(unused)]) == {
        "app_msgspec": str(script),
        "app_wave": str(unused),
    }
